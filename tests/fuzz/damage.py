"""Ways to damage bytes and JSON, drawn by a generator: the same seed, the same damage."""

import copy
import json
import math

ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, math.inf, math.nan, "", "x", "0",
    "\x00", "\ud800", "é" * 300, [], {}, [[]], [0], {"": 0}, [None] * 3,
)  # fmt: skip
WORDS = (b"\x00", b"\xff", b"\x00" * 8, b"\xff" * 8, b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f", b"\n", b'"', b"{", b"]")


def damaged_bytes(data, rng):
    """Return bytes with one to three things wrong."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, len(data) + 1))
        size = int(min(rng.geometric(0.1), max(len(data) - place, 0)))
        match rng.integers(0, 7):
            case 0:
                del data[place:]
            case 1:
                del data[place : place + size]
            case 2:
                data[place:place] = rng.bytes(size)
            case 3:
                data[place : place + size] = rng.bytes(size)
            case 4:
                source = int(rng.integers(0, len(data) + 1))
                data[place : place + size] = data[source : source + size]
            case 5:
                word = WORDS[rng.integers(0, len(WORDS))]
                data[place : place + len(word)] = word
            case 6 if place < len(data):
                data[place] ^= 1 << int(rng.integers(0, 8))
    return bytes(data)


def damaged_json(text, rng):
    """Return JSON whose values are not as they should be; one time in four its bytes are not, either."""
    value = json.loads(text)
    for _ in range(rng.integers(1, 4)):
        value = _changed(value, rng)
    data = json.dumps(value).encode()
    return damaged_bytes(data, rng) if rng.integers(0, 4) == 0 else data


def _changed(value, rng):
    """Return a value of which one part, at any depth, is another."""
    places = list(_places(value))
    path = places[rng.integers(0, len(places))]
    odd = copy.deepcopy(ODD[rng.integers(0, len(ODD))])
    if not path:
        return odd if rng.integers(0, 10) == 0 else value
    value = copy.deepcopy(value)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    match rng.integers(0, 4):
        case 0:
            del parent[path[-1]]
        case 1 if isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        case 1:
            parent[f"{path[-1]}s"] = odd
        case 2 if isinstance(parent[path[-1]], int | float) and not isinstance(parent[path[-1]], bool):
            parent[path[-1]] += int(rng.integers(-3, 4))
        case _:
            parent[path[-1]] = odd
    return value


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))
