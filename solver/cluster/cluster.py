"""`Cluster`, `Device`, `Link`: what was measured, or declared by a person; the file `hepti-cluster/1`.

Inside, units are bytes, seconds and FLOP; the file has the units that people use (GiB, Mbps, µs, GFLOP/s).

A person writes the short form. `profile` writes the long one: besides, every device has its curves (see
`solver.cluster.curves`), and where it differs from the network the bandwidth of its own link, and the file says how it
came about:

    [profile]
    model = "bert-large"
    backend = "numpy"
    precision = "float32"    # or int8: weights take a quarter of the memory
    date = "2026-11-20"
    [[device]]
    name = "pi-0"
    gflops = 24.1
    memory_gib = 3.21
    bandwidth_mbps = 933     # all that it sends or receives at a time, each way
    [device.curves]
    head_dim = 64
    project = { rows = [1, 2, 64, 256], weights = [196608, 4194304], seconds = [[...], [...], [...], [...]] }
    activate = { elements = [16384, 1048576], seconds = [...] }
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from solver.base.command import whole_file
from solver.base.errors import HeptiError, explained
from solver.base.phrases import counted, did_you_mean
from solver.cluster.curves import Curves, curves_from_table, curves_to_table, derived_curves
from solver.cluster.decoder_curves import (
    DecoderSpeeds,
    decoder_from_table,
    decoder_to_table,
    derived_decoder_speeds,
)
from solver.cluster.nodes import NodeSpeeds, derived_speeds, speeds_from_table, speeds_to_table, twelve_digits
from solver.model.precision import FLOAT32, PRECISIONS, Precision

FORMAT = "hepti-cluster/1"
TO_WRITE = (
    f'hepti profile measures one, or write format = "{FORMAT}", a [[device]] with name, gflops and memory_gib for '
    f"every board, and a [network] with bandwidth_mbps"
)
MIB, GIB = 2**20, 2**30
# Of a device's memory: the interpreter, numpy, MPI and its socket buffers, beside weights and activations.
PROGRAM_BYTES = 150 * MIB
# The numbers of the file: which field of a device or a link each is, what that is in our units, and its limits. Beyond
# these a number is a slip of the pen (a wrong unit, a lost digit), not a board or a network.
QUANTITIES: Mapping[str, tuple[str, Callable[[float], float], float, float]] = {
    "gflops": ("compute_flop_per_s", lambda value: value * 1e9, 1e-3, 1e6),
    "memory_gib": ("memory_bytes", lambda value: round(value * GIB), 1e-3, 1e5),
    "bandwidth_mbps": ("bandwidth_bytes_per_s", lambda value: value * 1e6 / 8, 1e-3, 1e7),
    "latency_us": ("latency_s", lambda value: value / 1e6, 0.0, 1e8),
    "jitter_us": ("jitter_s", lambda value: value / 1e6, 0.0, 1e8),
    "rest_us": ("rest_s", lambda value: value / 1e6, 0.0, 1e8),
    "compute_watts": ("compute_watts", lambda value: value, 0.0, 1e5),
    "transmit_watts": ("transmit_watts", lambda value: value, 0.0, 1e5),
}


@dataclass(frozen=True, slots=True)
class Device:
    """One board.

    Parameters
    ----------
    name
        One word.
    compute_flop_per_s
        Sustained float32 speed of a MatMul of 256 rows.
    memory_bytes
        Free for weights and activations.
    bandwidth_bytes_per_s
        All that it can send, and receive, at a time; None: what the network gives.
    curves
        Measured seconds of every kernel; None: derived from the speed.
    jitter_s
        By how much later than their compute says two such devices that take equally long are done, on average: no two
        steps take the same time, and the slower one counts every time.
    rest_s
        By how much compute is shorter after a wait: a CPU quota saves up.
    nodes
        What nodes of a convolutional network were measured to take; None: derived from the speed.
    decoder
        What a language model was measured to take; None: derived from the speed.
    compute_watts, transmit_watts
        What it draws while it computes, and while it sends, as a person declares it; 0: not said.
    """

    name: str
    compute_flop_per_s: float
    memory_bytes: int
    bandwidth_bytes_per_s: float | None = None
    curves: Curves | None = None
    jitter_s: float = 0.0
    rest_s: float = 0.0
    nodes: NodeSpeeds | None = None
    decoder: DecoderSpeeds | None = None
    compute_watts: float = 0.0
    transmit_watts: float = 0.0

    @property
    def kernels(self) -> Curves:
        """Measured curves, or the derived ones."""
        return self.curves or derived_curves(self.compute_flop_per_s)

    @property
    def node_speeds(self) -> NodeSpeeds:
        """What nodes of a convolutional network take, measured or derived."""
        return self.nodes or derived_speeds(self.compute_flop_per_s)

    def decoder_speeds(self, precision: str) -> DecoderSpeeds:
        """Return what a language model takes whose weights are held so: as measured where that was so, or derived."""
        if self.decoder is not None and self.decoder.precision == precision:
            return self.decoder
        return derived_decoder_speeds(self.compute_flop_per_s, precision)


@dataclass(frozen=True, slots=True)
class Link:
    """What one device can send to another, each way."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in rank order, the network that joins them, the pairs that differ from it, and who measured it."""

    devices: tuple[Device, ...]
    network: Link
    links: Mapping[frozenset[str], Link] = field(default_factory=dict)
    profile: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Device names in rank order."""
        return tuple(device.name for device in self.devices)

    @property
    def precision(self) -> Precision:
        """What its devices hold weights in: what was measured, else float32."""
        return PRECISIONS[self.profile.get("precision", "float32")]

    def holding(self, precision: str) -> Cluster:
        """Return the cluster with weights in another precision, as a run has it, whatever was measured."""
        return replace(self, profile={**self.profile, "precision": precision})

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of everything a plan depends on."""
        table = _to_toml(replace(self, profile={} if self.precision == FLOAT32 else {"precision": self.precision.name}))
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]

    def link(self, one: int, other: int) -> Link:
        """Return the link between two ranks."""
        pair = frozenset((self.devices[one].name, self.devices[other].name))
        if pair in self.links:
            return self.links[pair]
        return Link(min(self.bandwidth(one), self.bandwidth(other)), self.network.latency_s)

    def bandwidth(self, rank: int) -> float:
        """Return the bytes per second that a device can send, and receive, over all its links together."""
        device = self.devices[rank]
        if device.bandwidth_bytes_per_s is not None:
            return device.bandwidth_bytes_per_s
        own = (link.bandwidth_bytes_per_s for pair, link in self.links.items() if device.name in pair)
        return max(self.network.bandwidth_bytes_per_s, *own, 0.0)

    @property
    def links_mbps(self) -> list[float]:
        """Every device's own link, in Mbps; none of a device alone."""
        ranks = range(len(self.devices))
        return [self.bandwidth(rank) * 8 / 1e6 for rank in ranks] if len(ranks) > 1 else []

    def first(self, ranks: int, source: str) -> Cluster:
        """Return the cluster of the first `ranks` devices; `source` names the file in the error."""
        if ranks > len(self.devices):
            raise HeptiError(
                f"{source} has {counted(len(self.devices), 'device')}, the job has {ranks} ranks: start "
                f"{counted(len(self.devices), 'rank')} or add devices"
            )
        return self.only(range(ranks))

    def with_device(self, rank: int, **changes: Any) -> Cluster:
        """Return the cluster with one device changed."""
        devices = list(self.devices)
        devices[rank] = replace(devices[rank], **changes)
        return replace(self, devices=tuple(devices))

    def only(self, ranks: Iterable[int]) -> Cluster:
        """Return the cluster of some of the devices, in this order."""
        devices = tuple(self.devices[rank] for rank in ranks)
        names = {device.name for device in devices}
        links = {pair: link for pair, link in self.links.items() if pair <= names}
        return replace(self, devices=devices, links=links)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file, short or long form.

    Raises
    ------
    HeptiError
        If the file is missing, is not TOML, or a value in it is missing, unknown or absurd.
    """
    with explained(f"cannot read cluster file {path}", OSError):
        text = path.read_bytes()
    with explained(f"{path} is not TOML", (ValueError, RecursionError)):
        table = tomllib.loads(text.decode())
    with explained(str(path), HeptiError):
        return _from_toml(table)


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write a cluster file that `read_cluster` reads back to the same cluster, to twelve digits."""
    with whole_file(path) as temporary:
        import tomli_w  # ranks other than 0 write none, and their boards need not have it

        temporary.write_text(tomli_w.dumps(_to_toml(cluster)), encoding="utf-8")


def _from_toml(table: dict[str, Any]) -> Cluster:
    if not table:
        raise HeptiError(f"the file is empty: {TO_WRITE}")
    _check_keys(table, "the file", required=("format", "device", "network"), optional=("link", "profile"))
    if table["format"] != FORMAT:
        raise HeptiError(f"format is {table['format']!r}, this version reads {FORMAT!r}")
    devices = tuple(_device(entry, number) for number, entry in enumerate(_tables(table, "device"), start=1))
    if not devices:
        raise HeptiError("there is no [[device]]")
    twice = [name for name, count in Counter(device.name for device in devices).items() if count > 1]
    if twice:
        raise HeptiError(f"two devices are called {twice[0]}: give each its own name")
    network = table["network"]
    if not isinstance(network, dict):
        raise HeptiError("[network] must be a table with bandwidth_mbps and latency_us")
    _check_keys(network, "[network]", required=("bandwidth_mbps",), optional=("latency_us",))
    network = {"latency_us": 200.0, **network}
    everywhere = Link(**quantities(network, "[network]"))
    names = {device.name for device in devices}
    links = {}
    for entry in _tables(table, "link"):
        _check_keys(entry, "[[link]]", required=("between",), optional=("bandwidth_mbps", "latency_us"))
        pair = entry["between"]
        where = f"[[link]] between {pair}"
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] == pair[1]:
            raise HeptiError(f"{where}: name two different devices")
        for name in pair:
            if not isinstance(name, str) or name not in names:
                raise HeptiError(f"{where}: there is no device {name!r}{did_you_mean(str(name), sorted(names))}")
        if frozenset(pair) in links:
            raise HeptiError(f"{where} is given twice")
        links[frozenset(pair)] = Link(**quantities({**network, **entry}, where))
    profile = table.get("profile", {})
    if not isinstance(profile, dict):
        raise HeptiError("[profile] must be a table")
    if str(profile.get("precision", "float32")) not in PRECISIONS:
        raise HeptiError(f"[profile]: precision is {profile['precision']!r}, must be one of {', '.join(PRECISIONS)}")
    return Cluster(devices, everywhere, links, {key: str(value) for key, value in profile.items()})


def _device(entry: dict[str, Any], number: int) -> Device:
    name = entry.get("name")
    where = f"device {name}" if isinstance(name, str) else f"device number {number}"
    optional = (
        "bandwidth_mbps",
        "jitter_us",
        "rest_us",
        "compute_watts",
        "transmit_watts",
        "curves",
        "nodes",
        "decoder",
    )
    _check_keys(entry, where, required=("name", "gflops", "memory_gib"), optional=optional)
    if not isinstance(name, str) or not name or any(letter.isspace() for letter in name):
        raise HeptiError(f"{where}: name must be one word")
    fields = quantities(entry, where)
    with explained(where, HeptiError):
        curves = curves_from_table(entry["curves"]) if "curves" in entry else None
        nodes = speeds_from_table(entry["nodes"]) if "nodes" in entry else None
        decoder = decoder_from_table(entry["decoder"]) if "decoder" in entry else None
        return Device(name, curves=curves, nodes=nodes, decoder=decoder, **fields)


def quantities(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields that numbers of the cluster file are, in our units; what no board or network has is refused."""
    fields = {}
    for key, (field_name, converted, low, high) in QUANTITIES.items():
        if key not in entry:
            continue
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise HeptiError(f"{where}: {key} is {value!r}, must be a number")
        if not low <= value <= high:
            raise HeptiError(f"{where}: {key} is {value}, must be between {low:g} and {high:g}")
        fields[field_name] = converted(float(value))
    return fields


def _tables(table: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise HeptiError(f"write each {key} as a table of its own: [[{key}]]")
    return entries


def _check_keys(entry: Mapping[str, Any], where: str, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    known = required + optional
    # A key that is missing is often one that is misspelt: both in one line.
    problems = [f" has no {key}" for key in required if key not in entry][:1]
    problems += [f": unknown key {key!r}{did_you_mean(key, sorted(known))}" for key in entry if key not in known][:1]
    if problems:
        raise HeptiError(where + "".join(problems))


def _to_toml(cluster: Cluster) -> dict[str, Any]:
    table: dict[str, Any] = {
        "format": FORMAT,
        "device": [_device_to_toml(device) for device in cluster.devices],
        "network": _link_to_toml(cluster.network),
    }
    if cluster.profile:
        table["profile"] = dict(cluster.profile)
    if cluster.links:
        table["link"] = [
            {"between": sorted(pair), **_link_to_toml(link)}
            for pair, link in sorted(cluster.links.items(), key=lambda item: sorted(item[0]))
        ]
    return table


def _device_to_toml(device: Device) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": device.name,
        "gflops": twelve_digits(device.compute_flop_per_s / 1e9),
        "memory_gib": device.memory_bytes / GIB,
    }
    if device.bandwidth_bytes_per_s is not None:
        entry["bandwidth_mbps"] = twelve_digits(device.bandwidth_bytes_per_s * 8 / 1e6)
    for key, seconds in (("jitter_us", device.jitter_s), ("rest_us", device.rest_s)):
        if seconds:
            entry[key] = twelve_digits(seconds * 1e6)
    for key, watts in (("compute_watts", device.compute_watts), ("transmit_watts", device.transmit_watts)):
        if watts:
            entry[key] = twelve_digits(watts)
    if device.curves is not None:
        entry["curves"] = curves_to_table(device.curves)
    if device.nodes is not None:
        entry["nodes"] = speeds_to_table(device.nodes)
    if device.decoder is not None:
        entry["decoder"] = decoder_to_table(device.decoder)
    return entry


def _link_to_toml(link: Link) -> dict[str, float]:
    return {
        "bandwidth_mbps": twelve_digits(link.bandwidth_bytes_per_s * 8 / 1e6),
        "latency_us": twelve_digits(link.latency_s * 1e6),
    }
