"""DeTransformer: "Communication-Efficient Model Parallelism for Distributed In-Situ Transformer Inference", DATE 2024.

Block parallelism. The model is another one, pre-trained so: its L layers are N_b groups, each of L / N_b - 1 decoupled
layers and an original one after them. A decoupled layer is N_div sub-blocks that see H / N_div columns each, so that
nothing is sent within a group. Between groups the columns are gathered for the original layer, which is computed

    whole             by every device for itself: columns gathered by all       (p - 1) / p S H elements a device
    tensor-parallel   by heads and MLP columns, as Megatron: two all-reduces more        5 (p - 1) / p S H
    on one device     columns gathered by it, and dealt out again

The paper's adaptive placement balances communication, compute and memory; the objective is not in what could be read of
it (slides, code). Our reading: the devices' numbers of sub-blocks n_1 .. n_p, which add up to N_div, and a way m_g for
each original layer, so that the weights fit every device's memory and

    T = in + sum_g c(n, m_g)
    c = max over i of (d_i, max over j that i hears of (d_j + exchange)) + w(m) + out,    d_i = (L / N_b - 1) n_i t_i

is least. t_i are the seconds of a sub-block on device i: who is done with a group sends its columns at once. w are
those of the original layer, of the slowest who computes it; `in` and `out` those of dealing columns out, before the
first group and after an original layer on one device; after the last layer rank 0 gets the result instead. Shares
of tensor-parallel layers are in proportion to the devices' speeds; who has no sub-block takes no part.

All n are tried, the most promising first, until no other can be better: T with the best ways, as if memory had no end,
bounds what memory allows. The original layers are all alike, so the ways that fit are found by branch and bound over
how many layers have which. Of many devices the fastest are looked at: MOST, and no more than make WAYS of n.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Cut
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, StreamLayout
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.layer_table import Integers
from solver.schedule.encoders.memory import nearest_lacks, weights_room, whole_layer_bytes
from solver.schedule.encoders.pricing import Pricer
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.steps import cut_steps
from solver.schedule.exchange import Exchange, Mask, gather, scatter
from solver.schedule.timing import TimedStep, Transfer, step_times
from solver.systems.decoupled import TENSOR_PARALLEL, WHOLE, decoupled_plan, seconds_on_one, tensor_shares

MOST, WAYS = 8, 1 << 13


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """What can be chosen: ways to share sub-blocks out; and modes of an original layer, number d on device d alone.

    Parameters
    ----------
    counts : [ways, p]
        Sub-blocks of every device.
    fixed_s : [ways]
        Seconds before the first group.
    inner_s, last_s : [ways, p + 2]
        Seconds of a group by the mode of its original layer, with another group after it and as the last of all;
        whole and tensor-parallel stand last.
    held : [ways, p + 2, p]
        Bytes that it takes.
    room : [ways, p]
        Bytes that sub-blocks leave for original layers.
    """

    counts: Integers
    fixed_s: Floats
    inner_s: Floats
    last_s: Floats
    held: Floats
    room: Floats


def plan_detransformer(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Choose sub-blocks and ways of least T.

    Raises
    ------
    InfeasiblePlanError
        If the model has no decoupled layers, or fits in no way.
    """
    if not spec.groups:
        raise InfeasiblePlanError(
            f"{spec.name} has no decoupled layers: take a model that has, say bert-large-decoupled"
        )
    room = weights_room(spec, cluster, rows)
    crew = able(spec, cluster, rows, room)
    found = choose(choices(spec, cluster, rows, crew), spec.groups) if crew else None
    if found is None:
        needed = spec.sub_blocks * _part_bytes(spec) + spec.groups * whole_layer_bytes(spec)
        # Those that get sub-blocks stay the same when one of them has more room.
        ours = np.isin(np.arange(room.size), crew or np.arange(room.size))
        raise nearest_lacks(f"{spec.name} by detransformer", spec, cluster, room, np.where(ours, needed, np.inf))
    counts, modes = found
    every = np.zeros(len(cluster.devices), np.int64)
    every[crew] = counts
    originals = [crew[mode] if mode >= 0 else mode for mode in modes]
    return decoupled_plan(setting(spec, cluster, rows), cluster, "detransformer", every, originals)


def able(spec: ModelSpec, cluster: Cluster, rows: int, room: Floats) -> list[int]:
    """Return the ranks that may get sub-blocks: of those with room for one, the fastest, in ascending order."""
    seconds = seconds_on_one(setting(spec, cluster, rows), spec.blocks)
    found = [rank for rank in np.argsort(seconds, kind="stable").tolist() if room[rank] >= _part_bytes(spec)][:MOST]
    while found and math.comb(spec.sub_blocks + len(found) - 1, spec.sub_blocks) > WAYS:
        found.pop()
    return sorted(found)


def ways(parts: int, devices: int) -> Integers:
    """Return every way to share parts out, [ways, devices]."""
    places = parts + devices - 1
    bars = [(-1, *bar, places) for bar in combinations(range(places), devices - 1)]
    return np.asarray(np.diff(np.array(bars), axis=1) - 1)


def choices(spec: ModelSpec, cluster: Cluster, rows: int, crew: list[int]) -> Choices:
    """Price every way to share sub-blocks out among some devices, and every mode of an original layer under it."""
    s, p = setting(spec, cluster, rows).only(np.array(crew)), len(crew)
    part_s, whole_s = (seconds_on_one(s, one) for one in (spec.part_blocks, spec.blocks))
    counts = ways(spec.sub_blocks, p)
    active = counts > 0
    columns = FLOAT_BYTES * rows * (spec.hidden // spec.sub_blocks) * counts.astype(float)
    only = [np.broadcast_to(np.arange(p) == rank, counts.shape) for rank in range(p)]
    group_s = (spec.layers // spec.groups - 1) * counts * part_s

    def end(exchange: Exchange, before: Floats) -> Floats:
        load = {Axis.FIXED: before}
        step = TimedStep("", before=load, first=load, transfer=Transfer(lambda values, active: exchange))
        return np.asarray(step_times(step, {}, active, s.machine).end.max(1))

    gathered = end(gather(columns, active), group_s)
    to_one = np.stack([end(gather(columns, one), group_s) for one in only], 1)
    from_one = np.stack([end(scatter(columns, one), 0 * group_s) for one in only], 1)
    to_root = np.array([_hop_s(cluster, rank, FLOAT_BYTES * rows * spec.hidden) for rank in crew])
    root = active.argmax(1)  # who deals the first columns out, and sends rank 0 the last rows where all have them
    tensor_s, tensor_bytes = _tensor_parallel(s, active)
    alone = np.where(active, to_one + whole_s, np.inf)
    by_all = np.stack([(whole_s * active).max(1), tensor_s], 1) + gathered[:, None]
    whole_bytes = whole_layer_bytes(spec)
    on_one = np.broadcast_to(whole_bytes * np.eye(p), (len(counts), p, p))
    return Choices(
        counts,
        fixed_s=to_root[root] + from_one[np.arange(len(counts)), root],
        inner_s=np.concatenate([alone + from_one, by_all], 1),
        last_s=np.concatenate([alone + to_root, by_all + to_root[root][:, None]], 1),
        held=np.concatenate([on_one, np.stack([whole_bytes * active, tensor_bytes], 1)], 1),
        room=weights_room(spec, cluster, rows)[crew] - _part_bytes(spec) * counts,
    )


def choose(given: Choices, groups: int) -> tuple[Integers, list[int]] | None:
    """Return the sub-blocks of every device and the modes of the original layers of least T; None if nothing fits."""
    best_s, best = math.inf, None
    bounds = given.fixed_s + (groups - 1) * given.inner_s.min(1) + given.last_s.min(1)
    for way in np.argsort(bounds, kind="stable").tolist():
        if bounds[way] >= best_s:
            break
        room, held = given.room[way], given.held[way]
        order = np.argsort(given.inner_s[way], kind="stable")
        inner_s = given.inner_s[way, order].tolist()
        for last, last_s in enumerate(given.last_s[way].tolist()):
            sure_s = float(given.fixed_s[way]) + last_s
            if sure_s < best_s and (held[last] <= room).all():
                found = _least(inner_s, held[order], room - held[last], groups - 1, best_s - sure_s)
                if found is not None:
                    best_s = sure_s + found[0]
                    best = given.counts[way], [*order[list(found[1])].tolist(), last]
    if best is None:
        return None
    devices = given.counts.shape[1]
    return best[0], [mode if mode < devices else (WHOLE, TENSOR_PARALLEL)[mode - devices] for mode in best[1]]


def _least(
    seconds: list[float], held: Floats, room: Floats, layers: int, limit_s: float, first: int = 0
) -> tuple[float, tuple[int, ...]] | None:
    """Return the modes of least sum, below a limit, in which so many layers fit; modes stand in ascending order."""
    if not layers:
        return 0.0, ()
    best = None
    for mode in range(first, len(seconds)):
        if layers * seconds[mode] >= limit_s:
            break  # the others take longer
        if (held[mode] <= room).all():
            others = _least(seconds, held, room - held[mode], layers - 1, limit_s - seconds[mode], mode)
            if others is not None:
                limit_s = seconds[mode] + others[0]
                best = limit_s, (mode, *others[1])
    return best


def _tensor_parallel(s: Setting, active: Mask) -> tuple[Floats, Floats]:
    """Return the seconds of an original layer by heads and columns, [ways], and the bytes of its shares, [ways, p]."""
    shares = [tensor_shares(s, mask) for mask in active]
    values = {axis: np.array([share[axis] for share in shares], float) for axis in shares[0]}
    pricer = Pricer(s, values, None, active)
    for block in s.spec.blocks:
        pricer.add(block, cut_steps(block, Cut.BLOCK, StreamLayout.FULL))
    # Among its like: what the layer ends with stands before its first exchange.
    steps, last = pricer.taken()
    seconds = sum(step_times(step, values, active, s.machine).end.max(1) for step in last.before(steps))
    unit_bytes = [sum(tensor.held_bytes(units=1) for tensor in block.shared) for block in s.spec.blocks]
    return np.asarray(seconds), np.asarray(sum(map(operator.mul, unit_bytes, values.values())))


def _part_bytes(spec: ModelSpec) -> int:
    """Return the bytes of one sub-block in all decoupled layers."""
    part_bytes = sum(tensor.held_bytes() for block in spec.part_blocks for tensor in block.tensors)
    return part_bytes * (spec.layers - spec.groups)


def _hop_s(cluster: Cluster, rank: int, size: int) -> float:
    """Return the seconds in which so many bytes get from a device to rank 0, or back."""
    if not rank:
        return 0.0
    link = cluster.link(0, rank)
    return link.latency_s + size / link.bandwidth_bytes_per_s
