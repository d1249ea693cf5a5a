"""A weights file that is none: tensors in memory, read as those of a file are."""

from functools import partial

import numpy as np

from hepti_mpi.engine.layers import block_kernels, load, rank_layers
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.engine.network import NetworkShare


class InMemory:
    """Tensors in memory; `tensor_of` returns one by its name."""

    def __init__(self, tensor_of):
        self._tensor_of = tensor_of
        self.odd_types = {}

    def type_of(self, name):
        """Return the type of a tensor."""
        return self._tensor_of(name).dtype

    def read_pieces(self, piece, bytes_limit, out=None):
        """Give a slice at once."""
        found = np.atleast_1d(self._tensor_of(piece.name))[piece.index]
        if out is None:
            out = np.empty_like(found, order="C")
        out[...] = found
        yield out


def layers_of(tensor_of, spec, plan, group, computes):
    """Return a rank's layers of such tensors."""
    make = partial(block_kernels, computes.graph)
    _, held = load(WeightsSource(group, InMemory(tensor_of)), spec, [plan], make)
    return rank_layers(spec, plan, group.rank, held)


def network_of(tensors, net, plan, group):
    """Return a rank's share of a network with such tensors."""
    share, source = NetworkShare(net, plan, group), WeightsSource(group, InMemory(tensors.__getitem__))
    source.complete(share.lacking(source.type_of))
    return share


def take_all(lacking, file):
    """Get what is lacking from a file that is open, on one rank."""
    for own in lacking:
        for piece, out in own.places:
            for _ in file.read_pieces(piece, 1 << 20, out):
                pass
        own.make()
