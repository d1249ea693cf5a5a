"""A discrete-event simulation of layers by rows: what the closed formula of a step is held against.

Every device runs the engine's program (`hepti_mpi.engine.encoder`) on one core: tile by tile the row-wise
work and the next K and V, then Q and attention on its own keys, then on others' as they come. What it sends waits for
its link, what it passes on for the end of what it is computing. No device waits for another but for its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from solver.base.spans import Partition, tiles
from solver.cluster.curves import Kernel
from solver.plan.routes import Route, of_owner, sources
from solver.schedule.encoders.setting import Setting

LAYERS = 12


@dataclass
class Device:
    """A device's inbox and links: tiles that came, (layer, owner, tile), and until when its links are busy."""

    here: list[tuple[int, int, int]] = field(default_factory=list)
    waits: bool = False
    out_free: float = 0.0
    in_free: float = 0.0


def seconds_per_layer(s: Setting, rows: list[int], route: Route) -> float:
    """Return the seconds of one layer among many alike; `rows` per device, all of one request."""
    spec, bank, network = s.spec, s.machine.bank, s.machine.network
    attention, mlp = (block.kind for block in spec.blocks)
    H, F, A, d, p = spec.hidden, mlp.ffn, attention.heads, attention.head_dim, len(rows)
    cut = [[tile.size for tile in tiles(span, s.tile_rows)] for span in Partition.of_counts(rows)]
    owners = [rank for rank in range(p) if rows[rank]]
    devices, events, order, ends = [Device() for _ in range(p)], [], count(), {}

    def cost(rank: int, kernel: Kernel, *arguments: float) -> float:
        return float(bank.seconds(kernel, *arguments)[rank])

    def tile_seconds(rank: int, n: int) -> float:
        products = [(Kernel.PROJECT, 2 * H * H), (Kernel.CONTRACT, H * H), (Kernel.PROJECT, H * F)]
        found = sum(cost(rank, kernel, n, weights) for kernel, weights in [*products, (Kernel.CONTRACT, H * F)])
        return found + cost(rank, Kernel.ACTIVATE, n * F) + 2 * cost(rank, Kernel.NORM, n * H)

    def attend(rank: int, keys: float) -> float:
        return float(bank.attend(rows[rank], keys, A, d)[rank])

    def from_whom(owner: int, number: int) -> dict[int, int]:
        via = of_owner(route, rows, owner)
        return sources(via, owner, number, [rank for rank in owners if rank != owner], p)

    def send(now: float, rank: int, tile: tuple[int, int, int]) -> float:
        """Hand a tile to all who get it from here; return what that costs in CPU time."""
        spent, size = 0.0, s.row_bytes(2 * H, 2) * cut[tile[1]][tile[2]]
        for peer, source in from_whom(tile[1], tile[2]).items():
            if source == rank:
                began = max(now, devices[rank].out_free)
                devices[rank].out_free = began + size / network.bandwidth[rank]
                arrives = max(devices[rank].out_free, devices[peer].in_free + size / network.bandwidth[peer])
                devices[peer].in_free = arrives
                heappush(events, (arrives + network.latency_s, next(order), peer, tile))
                spent += cost(rank, Kernel.MESSAGE, size)
        return spent

    def program(rank: int) -> Iterator[float | None]:
        """Yield seconds to compute, or None to wait for a tile; is sent the time."""
        mine, now = devices[rank], 0.0
        for layer in range(LAYERS):
            passed: set[tuple[int, int, int]] = set()
            missing = {(layer, owner, n) for owner in owners if owner != rank for n in range(len(cut[owner]))}

            def onward(now: float, layer: int = layer, passed: set[tuple[int, int, int]] = passed) -> float:
                fresh = [tile for tile in mine.here if tile[0] == layer and tile not in passed]
                passed.update(fresh)
                size = s.row_bytes(2 * H, 2)
                received = sum(cost(rank, Kernel.MESSAGE, size * cut[owner][n]) for _, owner, n in fresh)
                return received + sum(send(now, rank, tile) for tile in fresh)

            for number, n in enumerate(cut[rank]):
                now = yield tile_seconds(rank, n)
                now = yield send(now, rank, (layer, rank, number)) + onward(now)
            now = yield cost(rank, Kernel.PROJECT, rows[rank], H * H) + attend(rank, rows[rank])
            while missing:
                now = yield onward(now)
                ready = missing.intersection(mine.here)
                missing -= ready
                now = yield attend(rank, sum(cut[owner][n] for _, owner, n in ready)) if ready else None
            ends[rank, layer] = now

    programs = [program(rank) for rank in range(p)]

    def advance(rank: int, now: float | None) -> None:
        step = programs[rank].send(now) if now is not None else next(programs[rank])
        devices[rank].waits = step is None
        if step is not None:
            heappush(events, ((now or 0.0) + step, next(order), rank, None))

    for rank in owners:
        advance(rank, None)
    while events:
        now, _, rank, tile = heappop(events)
        try:
            if tile is None:
                advance(rank, now)
            else:
                devices[rank].here.append(tile)
                if devices[rank].waits:
                    advance(rank, now)
        except StopIteration:
            continue
    first, last = (max(ends[rank, layer] for rank in owners) for layer in (2, LAYERS - 1))
    return (last - first) / (LAYERS - 3)
