"""PipeEdge: Hu et al., "PipeEdge: Pipeline Parallelism for Large-Scale Model Inference on Heterogeneous Edge Devices".

DSD 2022, arXiv 2110.14895. Contiguous stages, one device each, so that the slowest stage or link is as fast as can be:
throughput, not the latency of one request. The dynamic program runs over device types, since boards of one type are
interchangeable:

    h(i, C, u)  least bottleneck with the first i layers done by C[t] devices of every type t, the next stage on type u
    h(0, 0, u) = 0
    h(j, C + u, v) = min over i < j of max(h(i, C, u), comp(u, i..j), comm(j, u -> v))   if layers i..j fit on u
    answer = min over i, C, u of max(h(i, C, u), comp(u, i..L))                          if layers i..L fit on u

comp is the time of the layers on the type, comm the rows' bytes over the narrower of two links. It is as published but
for this: the type is an index of its own (the published code indexes hosts by it), layers are not cut into four
sub-layers (a stage of the engine begins with a whole layer), and where two plans have the same bottleneck the one with
fewer stages is taken, as it answers one request sooner. Embeddings are rank 0's, in its memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.cluster import Cluster
from solver.cost import weights_room
from solver.errors import InfeasiblePlanError
from solver.model import ModelSpec
from solver.pipeline import chain, layer_seconds, whole_layer_bytes
from solver.plan import Plan, Wire

Found = tuple[float, list[tuple[int, int]]]  # bottleneck, and (type, number of layers) of every stage


@dataclass(frozen=True, slots=True)
class Boards:
    """Devices of one type: their ranks, seconds of a layer, bytes a second, and how many layers one holds."""

    ranks: tuple[int, ...]
    layer_s: float
    bandwidth: float
    most: int


def plan_pipeedge(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32) -> Plan:
    """Choose stages by the dynamic program over device types; what adapts counts with its fewest bits."""
    boards = device_types(spec, cluster, rows)
    sent = Wire.INT2 if wire is Wire.ADAPTIVE else wire
    found = best_stages(boards, spec.layers, rows * sent.row_bytes(spec.hidden))
    if found is None:
        holds = sum(len(board.ranks) * board.most for board in boards)
        raise InfeasiblePlanError(f"{spec.name} has {spec.layers} layers, the devices hold {holds} between them")
    _, stages = found
    free = {number: iter(board.ranks) for number, board in enumerate(boards)}
    return chain(spec, cluster, [(next(free[number]), count) for number, count in stages], "pipeedge", rows)


def device_types(spec: ModelSpec, cluster: Cluster, rows: int) -> list[Boards]:
    """Return the devices that hold a layer, those that are alike together."""
    room, layer_bytes = weights_room(spec, cluster, rows), whole_layer_bytes(spec)
    alike: dict[tuple[float, float, int], list[int]] = {}
    for rank, seconds in enumerate(layer_seconds(spec, cluster, rows).tolist()):
        most = min(int(room[rank] // layer_bytes), spec.layers)
        if most > 0:
            alike.setdefault((seconds, cluster.bandwidth(rank), most), []).append(rank)
    return [Boards(tuple(ranks), *facts) for facts, ranks in alike.items()]


def best_stages(boards: list[Boards], layers: int, sent_bytes: float) -> Found | None:
    """Run the dynamic program.

    Parameters
    ----------
    boards
        The device types.
    layers
        L.
    sent_bytes
        Bytes of the rows that go from stage to stage.

    Returns
    -------
    (seconds, [(type, number of layers), ...]) or None
        The bottleneck and the stages; None where the model does not fit.
    """
    kinds = range(len(boards))
    # By layers done, then by C and u: the bottleneck and the stages so far.
    least: list[dict[tuple[tuple[int, ...], int], Found]] = [{} for _ in range(layers)]
    least[0] = {((0,) * len(boards), u): (0.0, []) for u in kinds}
    answer: Found | None = None

    def better(found: Found, known: Found | None) -> bool:
        return known is None or (found[0], len(found[1])) < (known[0], len(known[1]))

    for i in range(layers):
        for (used, u), (bottleneck, stages) in least[i].items():
            board = boards[u]
            if used[u] == len(board.ranks):
                continue
            after = (*used[:u], used[u] + 1, *used[u + 1 :])
            for j in range(i + 1, min(layers, i + board.most) + 1):
                worst = max(bottleneck, board.layer_s * (j - i))
                if answer is not None and worst > answer[0]:
                    break
                ahead = [*stages, (u, j - i)]
                if j == layers:
                    if better((worst, ahead), answer):
                        answer = worst, ahead
                    break
                for v in kinds:
                    comm = sent_bytes / min(board.bandwidth, boards[v].bandwidth)
                    found = max(worst, comm), ahead
                    if better(found, least[j].get((after, v))):
                        least[j][after, v] = found
    return answer
