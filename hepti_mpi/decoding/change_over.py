"""Keys and values go with their heads where the plan changes between tokens.

They are moved, never computed again: of llama-3.2-1b a token is 64 KiB of float32, half a millisecond on a gigabit
link, where computing it anew takes 20 ms on four boards of a quarter of a core each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.decoding.share import DecoderShare
from solver.base.arrays import Numbers
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan


def move_caches(before: DecoderShare, after: DecoderShare, kept: Sequence[int], group: Group) -> None:
    """Bring the keys and values of all sequences to where a plan has their heads; a step of all ranks.

    Parameters
    ----------
    before, after
        This rank's shares under the plan that ends and the one that begins.
    kept
        How many tokens of every sequence are in the caches.
    """
    model = before.model
    for layer in range(len(model.layers)):
        old, new = _holders(model, before.plan, layer), _holders(model, after.plan, layer)
        sends, receives = [], []
        for head, ranks in enumerate(new):
            source = old[head][0]
            for rank in ranks:
                if rank in old[head]:
                    if rank == group.rank and before.half(layer) is not after.half(layer):
                        for here, there in zip(_of(before, layer, head), _of(after, layer, head), strict=True):
                            there[...] = here
                elif rank == group.rank:
                    receives += _messages(_of(after, layer, head), kept, source)
                elif group.rank == source:
                    sends += _messages(_of(before, layer, head), kept, rank)
        # In the order of heads on both sides: what one rank sends another stays in order.
        arriving = [(np.empty(view.shape, view.dtype), view, peer) for view, peer in receives]
        requests = [group.post_receive(array, peer, Tag.CACHE) for array, _, peer in arriving]
        for view, peer in sends:
            group.post_send(np.ascontiguousarray(view), peer, Tag.CACHE)
        group.wait_all(requests)
        for array, view, _ in arriving:
            view[...] = array
        group.finish_sending()


def _holders(model: Decoder, plan: DecoderPlan, layer: int) -> list[list[int]]:
    """Return the ranks that have each key and value head of a layer."""
    attention = model.layers[layer].attention
    stage = next(stage for stage in plan.stages if stage.layers.start <= layer < stage.layers.stop)
    spans = [attention.kv_span(heads) for heads in stage.heads]
    return [
        [rank for rank, span in enumerate(spans) if span.start <= head < span.stop]
        for head in range(attention.kv_heads)
    ]


def _of(share: DecoderShare, layer: int, head: int) -> list[Numbers]:
    """Return a head's keys and values [sequences, context, d], and the scales of an int8 cache [d]."""
    half = share.half(layer)
    assert half is not None
    number = head - share.kv_heads(layer).start
    for place, run in enumerate(half.runs):
        if number < run.kv:
            caches = [cache[:, number] for cache in half.cache[2 * place : 2 * place + 2]]
            return [*caches, *(scale.reshape(run.kv, -1)[number] for scale in half.scales[2 * place : 2 * place + 2])]
        number -= run.kv
    raise IndexError(f"layer {layer}: this rank has no head {head}")


def _messages(arrays: Sequence[Numbers], kept: Sequence[int], peer: int) -> list[tuple[Numbers, int]]:
    """Return what goes from or to a rank: of caches the tokens that are kept, sequence by sequence, and scales."""
    found = []
    for array in arrays:
        if array.ndim == 1:
            found.append((array, peer))
            continue
        found += [(sequence[:tokens], peer) for sequence, tokens in zip(array, kept, strict=True) if tokens]
    return found
