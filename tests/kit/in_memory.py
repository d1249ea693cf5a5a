"""A weights file that is none: tensors in memory, read as those of a file are."""

from functools import partial

from hepti_mpi.engine.layers import block_kernels, rank_layers
from hepti_mpi.engine.load import WeightsSource, load


class InMemory:
    """Tensors in memory; `tensor_of` returns one by its name."""

    def __init__(self, tensor_of):
        self._tensor_of = tensor_of

    def read_pieces(self, piece, bytes_limit, out=None):
        """Give a slice at once, to a rank that has the file."""
        out[...] = self._tensor_of(piece.name)[piece.index]
        yield out


def layers_of(tensor_of, spec, plan, group, computes):
    """Return a rank's layers of such tensors."""
    make = partial(block_kernels, computes.graph)
    weights = load(WeightsSource(group, InMemory(tensor_of)), spec, [plan], make)
    return rank_layers(spec, plan, group.rank, weights.layers)
