"""Many images at once, on rank 0: they are dealt out to replicas as `engine.flow` says, and answered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.engine.flow import BatchOrder, Flow
from hepti_mpi.engine.network import HeldPlans, NetworkReplicas
from hepti_mpi.requests.pictures import PictureRequest
from solver.base import clock
from solver.base.arrays import Array, Numbers

AHEAD = 16  # images that wait to be dealt out or answered


@dataclass(slots=True, eq=False)
class DealtImage:
    """An image that is under way, and when it was dealt out."""

    request: PictureRequest
    dealt: float = 0.0

    def deal(self) -> Numbers:
        """Return its pixels, now that a replica gets them."""
        self.dealt = clock.now()
        return self.request.pixels


class ImageFlow:
    """Deals images out to replicas.

    Parameters
    ----------
    held
        Rank 0's shares of the replicas' plans.
    group
        All ranks.
    """

    def __init__(self, held: HeldPlans, group: Group) -> None:
        self._flow = Flow(NetworkReplicas(held, group), group)
        self._shapes = {value: array.shape for value, array in held.of(0).outputs.items()}
        self._under_way: deque[DealtImage] = deque()

    def answered(
        self,
        requests: Iterable[PictureRequest],
        is_there: Callable[[], bool],
        left_out: Callable[[PictureRequest], bool],
        *,
        counts: bool,
    ) -> Iterator[tuple[PictureRequest, dict[str, Array], float]]:
        """Yield images in order with the network's outputs, and the seconds from when each was dealt out.

        Parameters
        ----------
        requests
            The images; it may wait for the next one.
        is_there
            Whether it would not: answers on their way do not wait for an image that is not there yet.
        left_out
            Whether an image is not to be computed.
        counts
            Whether they count in the report.
        """
        for request in requests:
            if not left_out(request):
                image = DealtImage(request)
                self._under_way.append(image)
                self._flow.submit(BatchOrder((1,), counts), image.deal)
            while self._under_way and (len(self._under_way) > AHEAD or not is_there()):
                yield from self._step()
        while self._under_way:
            yield from self._step()

    def _step(self) -> Iterator[tuple[PictureRequest, dict[str, Array], float]]:
        for flat in self._flow.step():
            image = self._under_way.popleft()
            yield image.request, self._apart(flat), clock.now() - image.dealt

    def _apart(self, flat: Array) -> dict[str, Array]:
        """Return the outputs, which come one after the other."""
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return {value: own.reshape(shape) for (value, shape), own in zip(self._shapes.items(), parts, strict=True)}
