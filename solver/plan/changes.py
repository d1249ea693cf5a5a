"""What a rank holds, and what it lacks when a plan changes; a worker asks this, so it imports no solver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from solver.base.spans import Span
from solver.model.blocks import Block, Cut
from solver.model.precision import FLOAT32, Precision
from solver.model.spec import ModelSpec, layer_prefixes
from solver.plan.holdings import TensorSlice, alike, layer_slices, weights_bytes
from solver.plan.plan import BlockPlan, Keys, LayerPlan, Plan, Stage


@dataclass(frozen=True, slots=True)
class BlockShare:
    """What tells a rank's kernels of a block from others; the same in all layers that are cut alike.

    Parameters
    ----------
    block
        Of which it is a share.
    alone
        Whether the rank computes it of its rows alone.
    closes
        Whether it computes the second product of its rows alone: it is in one graph with residual and norm.
    avoided
        Whether K and V are not projected.
    grid
        Whether the first product is a summand, without bias and activation.
    slices
        The weights; their names begin after the layer's, or the sub-block's.
    sub_block
        Which one of a decoupled layer; None: the layer is an original one.
    """

    block: Block
    alone: bool
    closes: bool
    avoided: bool
    grid: bool
    slices: tuple[TensorSlice, ...]
    sub_block: int | None = None

    def of_layer(self, layer: int) -> list[TensorSlice]:
        """Return the weights of one layer."""
        prefix = f"layers/{layer}" if self.sub_block is None else f"layers/{layer}/{self.sub_block}"
        return [replace(piece, name=f"{prefix}/{piece.name}") for piece in self.slices]

    def held_bytes(self, precision: Precision = FLOAT32) -> int:
        """Return the bytes of the weights of one layer as a rank holds them."""
        return sum(piece.held_bytes(precision) for piece in self.slices)


LayerShare = tuple[BlockShare, ...]  # in order; of a decoupled layer those of every sub-block that the rank has
Shares = Mapping[int, LayerShare]  # by layer

# Cuts under which a rank computes a block of its rows alone: all of its weights are in one place.
ALONE = (Cut.ROWS, Cut.WHOLE, Cut.SUB_BLOCKS)
CLOSING = (*ALONE, Cut.TO_ROWS)  # and those under which that is so of what follows the second product's inputs


class Holdings:
    """By which plans every rank holds weights: the one that runs, and one of the other sort, if there was one.

    The two sorts are plans that cut all by rows, and others. So from another plan all can go over to rows, and back,
    and no weight is read. A rank that has no more rows keeps their weights, and takes rows again at once.

    Parameters
    ----------
    plan
        What all ranks have loaded.
    ranks
        How many.
    spare
        What they have loaded besides, of the other sort.
    """

    def __init__(self, plan: Plan, ranks: int, spare: Plan | None = None) -> None:
        self._plans: list[dict[bool, Plan]] = [{} for _ in range(ranks)]  # by whether all is cut by rows
        self._runs = [plan] * ranks  # those of the plans that run
        self.adopt(plan)
        if spare is not None:
            self.keep(spare)

    def adopt(self, plan: Plan, frees: Collection[int] = ()) -> None:
        """Take note of the plan that runs from now on; `frees` are ranks that keep nothing else."""
        self._bytes: dict[tuple[int, Precision], int] = {}
        by_rows = all_by_rows(plan)
        for rank, held in enumerate(self._plans):
            self._runs[rank] = source = self.source(plan, rank, frees)
            if rank in frees:
                held.clear()
            held[by_rows] = source

    def keep(self, plan: Plan) -> None:
        """Take note that ranks hold what a plan needs, besides what runs, which is of the other sort."""
        self._bytes = {}
        for rank, held in enumerate(self._plans):
            held[all_by_rows(plan)] = self.source(plan, rank)

    def adopt_front(self, plan: Plan, frees: Collection[int], layers: int) -> None:
        """Take note that so many layers in front run under a plan, and nothing is kept that does not run."""
        self._bytes = {}
        for rank, runs in enumerate(self._runs):
            self._runs[rank] = mixed = blend(self.source(plan, rank, frees), runs, layers)
            self._plans[rank] = {all_by_rows(mixed): mixed}

    def runs(self, rank: int) -> Plan:
        """Return the plan by which a rank holds the weights that run."""
        return self._runs[rank]

    def plans(self, rank: int) -> Collection[Plan]:
        """Return the plans by which a rank holds weights."""
        return self._plans[rank].values()

    def held_bytes(self, spec: ModelSpec, rank: int, precision: Precision = FLOAT32) -> int:
        """Return the bytes of what a rank holds."""
        if (rank, precision) not in self._bytes:
            self._bytes[rank, precision] = all_bytes(spec, list(self.plans(rank)), rank, precision)
        return self._bytes[rank, precision]

    def bytes_with(self, spec: ModelSpec, plan: Plan, rank: int, precision: Precision = FLOAT32) -> int:
        """Return the bytes of what a rank would hold once it has adopted a plan, and freed nothing."""
        plans = {**self._plans[rank], all_by_rows(plan): self.source(plan, rank)}
        return all_bytes(spec, list(plans.values()), rank, precision)

    def lacking(self, spec: ModelSpec, plan: Plan, rank: int, frees: Collection[int] = ()) -> Shares:
        """Return what a rank has to get before it adopts a plan."""
        source = self.source(plan, rank, frees)
        held = self._plans[rank]
        if source in held.values() or (_whole(source, rank) and _whole(held.get(True), rank)):
            return {}  # comparing them share by share takes a millisecond
        has = [layer_shares(spec, known, rank) for known in held.values()]
        found = {}
        for layer, needs in layer_shares(spec, source, rank).items():
            if missing := tuple(share for share in needs if all(share not in known[layer] for known in has)):
                found[layer] = missing
        return found

    def moved_bytes(self, spec: ModelSpec, plan: Plan, rank: int) -> int:
        """Return the float32 bytes that a rank reads, or gets, before it adopts a plan."""
        return sum(share.held_bytes() for shares in self.lacking(spec, plan, rank).values() for share in shares)

    def source(self, plan: Plan, rank: int, frees: Collection[int] = ()) -> Plan:
        """Return the plan that says what a rank holds under another plan, which is that one in general.

        Where the other plan only takes this rank's rows away, the rank keeps the weights of its former plan of that
        sort, unless it frees what it does not need: then that one is returned.
        """
        kept = self._plans[rank].get(all_by_rows(plan))
        idle = rank not in frees and any(rows and not rows[rank] for rows in _rows(plan))
        return kept if idle and kept is not None and _covers(kept, plan, rank) else plan


def _covers(kept: Plan, plan: Plan, rank: int) -> bool:
    """Return whether a plan differs from another in its rows alone, and a rank has none where it had none."""
    more = any(
        now is not None and had is not None and now[rank] and not had[rank]
        for had, now in zip(_rows(kept), _rows(plan), strict=True)
    )
    return _but_rows(kept) == _but_rows(plan) and not more


def _blocks(plan: Plan) -> list[BlockPlan]:
    return [block for span, layer in plan.stages[0].layers for _ in range(span.size) for block in layer]


@lru_cache(maxsize=32)
def _rows(plan: Plan) -> tuple[tuple[float, ...] | None, ...]:
    """Return the shares of rows of every block."""
    return tuple(block.rows for block in _blocks(plan))


@lru_cache(maxsize=32)
def _but_rows(plan: Plan) -> tuple[tuple[object, ...], ...]:
    """Return all that decides which weights ranks hold of every block, but for the shares of rows."""
    return tuple((block.cut, block.inner, block.columns, block.keys) for block in _blocks(plan))


def all_by_rows(plan: Plan) -> bool:
    """Return whether all blocks of a plan of one stage are cut by rows, and keys and values gathered."""
    (stage,) = plan.stages
    return all(block.cut is Cut.ROWS and block.keys is None for _, layer in stage.layers for block in layer)


def blend(front: Plan, back: Plan, layers: int) -> Plan:
    """Return the plan of which so many layers in front are of one plan and the others of another."""
    runs = [
        *((_cut(span, 0, layers), layer) for span, layer in front.stages[0].layers),
        *((_cut(span, layers, span.stop), layer) for span, layer in back.stages[0].layers),
    ]
    stage = Stage(front.devices, tuple((span, layer) for span, layer in runs if span.size))
    return replace(front, stages=(stage,), predicted=None)


def _cut(span: Span, start: int, stop: int) -> Span:
    return span.intersect(Span(start, max(start, stop)))


@lru_cache(maxsize=32)
def layer_shares(spec: ModelSpec, plan: Plan, rank: int) -> Shares:
    """Return what a rank holds of every layer of its stage; of none where it is in no stage."""
    if (place := plan.place(rank)) is None:
        return {}
    stage, within = place
    found: dict[int, LayerShare] = {}
    for first, count, cuts in alike(spec, stage):
        share = tuple(_block_shares(spec, cuts, within, first, layer_slices(spec, plan, first, rank)))
        found |= dict.fromkeys(range(first, first + count), share)
    return found


def _block_shares(
    spec: ModelSpec, cuts: LayerPlan, within: int, layer: int, slices: Sequence[TensorSlice]
) -> Iterator[BlockShare]:
    """Yield what a rank, by its number within its stage, holds of every block, of all that it holds of the layer."""
    run = spec.run(layer)
    decoupled = run.parts > 1
    for number, prefix in enumerate(layer_prefixes(run, layer)):
        for block, cut in zip(run.blocks, cuts, strict=True):
            own = tuple(
                replace(piece, name=piece.name.removeprefix(f"{prefix}/"))
                for piece in slices
                if piece.name.startswith(f"{prefix}/{block.name}/")
            )
            avoided = cut.keys is not None and cut.keys[within] is Keys.AVOIDED
            if own or not decoupled:
                yield BlockShare(
                    block,
                    cut.cut in ALONE,
                    cut.cut in CLOSING,
                    avoided,
                    cut.cut is Cut.GRID,
                    own,
                    number if decoupled else None,
                )


def everything(spec: ModelSpec, plans: Iterable[Plan], rank: int) -> Shares:
    """Return what a rank that holds nothing has to get, so that any of these plans can run."""
    return merged(layer_shares(spec, plan, rank) for plan in plans)


def merged(needs: Iterable[Shares]) -> Shares:
    """Return all of these shares, what is the same in several once."""
    found: dict[int, dict[BlockShare, None]] = {}
    for need in needs:
        for layer, shares in need.items():
            found.setdefault(layer, {}).update(dict.fromkeys(shares))
    return {layer: tuple(found[layer]) for layer in sorted(found)}


def _whole(plan: Plan | None, rank: int) -> bool:
    """Return whether a rank has all weights under a plan, since that gives it rows."""
    return plan is not None and all_by_rows(plan) and rank in plan.stages[0].active


def all_bytes(spec: ModelSpec, plans: Sequence[Plan], rank: int, precision: Precision = FLOAT32) -> int:
    """Return the bytes of all that a rank holds by several plans, what is the same in two of them once."""
    first, *others = plans
    total = weights_bytes(spec, first, rank, precision)
    if others:
        layers = zip(*(layer_shares(spec, plan, rank).values() for plan in plans), strict=True)
        # Layers that are cut alike share one object: one of them stands for all, or else this is a fifth of a decision.
        for _, same in groupby(layers, key=lambda known: [id(shares) for shares in known]):
            known, *more = same
            new = {share for shares in known[1:] for share in shares} - {*known[0]}
            total += (1 + len(more)) * sum(share.held_bytes(precision) for share in new)
    return total
