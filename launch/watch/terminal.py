"""`serve --watch`: what the page of a service shows, in a terminal."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from solver.base.errors import HeptiError
from solver.base.phrases import counted
from solver.base.tables import FittedTable, new_table
from solver.cluster.cluster import GIB, MIB

SILENT_S = 6.0  # the service speaks every second
WINDOW_S = 12.0  # over which speeds are taken, as the page does
EVENTS = 5
UNKNOWN = "-"


class Rates:
    """How fast counters grew lately; one that falls back begins anew."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, float]]] = {}

    def of(self, key: str, counter: float | None, now: float) -> float | None:
        """Take a counter; return by how much it grows in a second, None where nothing is known yet."""
        if counter is None:
            return None
        seen = self._seen.setdefault(key, deque())
        if seen and counter < seen[-1][1]:
            seen.clear()
        seen.append((now, counter))
        while len(seen) > 2 and seen[1][0] < now - WINDOW_S:
            seen.popleft()
        (first_at, first), (last_at, last) = seen[0], seen[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None


def watch(url: str, key: str | None, console: Console) -> None:
    """Show the service at an address until it ends.

    Raises
    ------
    HeptiError
        If there is none, it does not take the key, or it says nothing any more.
    """
    rates, live = Rates(), Live(console=console, auto_refresh=False)
    try:
        with live:
            for state in states_of(url, key):
                live.update(picture(state, rates, time.monotonic()), refresh=True)
    finally:
        if live.get_renderable() and not console.is_terminal:
            console.line()  # a file has the last picture alone, and of that no last line's end


def states_of(url: str, key: str | None) -> Iterator[Mapping[str, Any]]:
    """Yield what a service tells of itself, until it ends; raises as `watch` does."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    asks = urllib.request.Request(f"{url}/events", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # boards are near
    try:
        with opener.open(asks, timeout=SILENT_S) as told:
            for line in told:
                if line.startswith(b"data: "):
                    state = json.loads(line.removeprefix(b"data: "))
                    yield state
                    if state.get("ending"):
                        return
    except urllib.error.HTTPError as error:
        hint = "give its key by --key-file or HEPTI_API_KEY" if error.code == 401 else "is it hepti serve?"
        raise HeptiError(f"{url} refuses to be watched with {error.code}: {hint}") from error
    except urllib.error.URLError as error:
        raise HeptiError(f"no service at {url}: {error.reason}: start it, or give its --host and --port") from error
    except TimeoutError as error:
        raise HeptiError(f"the service at {url} has said nothing for {SILENT_S:.0f} s") from error
    except (OSError, HTTPException, ValueError) as error:
        raise HeptiError(f"the service at {url} cannot be read: {error}") from error
    raise HeptiError(f"the service at {url} has ended in the midst of a word")


def picture(state: Mapping[str, Any], rates: Rates, now: float) -> Group:
    """Return what a state looks like; `now` is in seconds of any clock that goes on."""
    events = [Text(f"{time.strftime('%X', time.localtime(event['at']))}  {event['text']}") for event in state["events"]]
    models = [_model(model, state, rates, now) for model in state["models"]]
    return Group(_boards(state), *(part for parts in models for part in parts), *events[-EVENTS:])


def _boards(state: Mapping[str, Any]) -> FittedTable:
    boards = state["boards"]
    alive = sum(board["alive"] for board in boards)
    requests = counted(len(state["requests"]), "request")
    title = f"{alive} of {counted(len(boards), 'board')} alive, {requests} in flight"
    table = new_table(title, "board", "state", "memory used, GiB", "CPU, %", "temperature, °C", words=2)
    for board in boards:
        if not board["alive"]:
            silent = "not heard of yet" if board["seen_s"] is None else f"lost, silent for {board['seen_s']:.0f} s"
            table.add_row(board["name"], Text(silent, "bold red"), UNKNOWN, UNKNOWN, UNKNOWN)
            continue
        total, free = board["total_bytes"], board["free_bytes"]
        memory = f"{(total - free) / GIB:.2f} of {total / GIB:.2f}" if total else UNKNOWN
        how = Text("throttled", "red") if board["throttled"] else "alive"
        table.add_row(board["name"], how, memory, _number(board["cpu_percent"], 0), _number(board["temperature_c"], 0))
    return table


def _model(model: Mapping[str, Any], state: Mapping[str, Any], rates: Rates, now: float) -> list[FittedTable | Text]:
    """Return who does what for a model, or why nobody does."""
    name, plan, boards = model["name"], model["plan"], model["boards"]
    unit = "tokens" if model["kind"] == "decoder" else "requests"
    speed = rates.of(name, model[unit], now)
    title = f"{name}: {model['state']}, {_number(speed, 1)} {unit} a second, {counted(model['requests'], 'request')}"
    if not (boards and model["ranks"]):
        return [Text(f"{title}; {model['reason'] or 'nothing is told yet'}")]
    shares = shares_of(plan) if plan else {}
    table = new_table(title, "board", "has, %", "computes, %", "waits, %", "sends, MiB/s", "sent, MiB")
    for rank, board in zip(model["ranks"], boards, strict=False):
        key = f"{name} {rank['rank']}"
        spent = (rates.of(f"{key} {what}", rank.get(what), now) for what in ("compute_s", "wait_s"))
        sent = rank.get("sent_bytes")
        share = shares.get(rank["device"])
        table.add_row(
            board, _number(share, 0, 100), *(_number(part, 0, 100) for part in spent),
            _number(rates.of(f"{key} sent", sent, now), 2, 1 / MIB), _number(sent, 1, 1 / MIB),
        )  # fmt: skip
    return [table, *([Text(model["reason"])] if model["reason"] else [])]


def _number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return UNKNOWN if value is None else f"{factor * value:.{digits}f}"


def shares_of(plan: Mapping[str, Any]) -> dict[str, float]:
    """Return every device's share of the work by a plan file's table: the mean over layers, or nodes."""
    shares = dict.fromkeys(plan["devices"], 0.0)
    rows = [*_rows(plan)]
    whole = sum(weight for weight, _, numbers in rows if sum(numbers))
    for weight, devices, numbers in rows:
        for device, number in zip(devices, numbers, strict=False):
            shares[device] += number / (sum(numbers) or 1) * weight / whole
    return shares


def _rows(plan: Mapping[str, Any]) -> Iterator[tuple[int, Sequence[str], Sequence[float]]]:
    """Yield, of all that is shared out, how many layers or nodes it stands for, to whom it goes, and how much."""
    for stage in plan["stages"]:
        devices = stage.get("devices", plan["devices"])
        for run in stage["runs"]:
            start, stop = run["nodes"] if "nodes" in run else run["layers"]
            for table in [run] if "cut" in run else (run[block] for block in ("attention", "mlp") if block in run):
                axis = next((axis for axis in ("heads", "columns", table["cut"]) if axis in table), None)
                yield stop - start, devices, [1] * len(devices) if axis is None else table[axis]
