"""What ranks on some boards are planned for: a cluster file, or a measurement that is kept, and the memory of now."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launch.watch.boards import Heartbeats
from launch.watch.site import Site
from solver.base.cache import cache_folder
from solver.base.command import whole_file
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB, PROGRAM_BYTES, Cluster, read_cluster

LEAST_BYTES = GIB // 500  # about the least that a cluster file may say: no share fits
# Measures boards; returns the cluster file.
Measure = Callable[[tuple[str, ...]], Awaitable[str]]


def kept_path(name: str, site: Site, boards: Sequence[str], *facts: object) -> Path:
    """Return where a file about boards is kept from one service to the next: `facts` are what else it holds for."""
    known = (tuple(boards), site.ranks, site.enter, site.scale, *facts)
    return cache_folder() / "serve" / f"{hashlib.sha256(repr(known).encode()).hexdigest()[:12]}-{name}"


class Clusters:
    """The clusters of one model.

    Parameters
    ----------
    site, heartbeats
        The boards.
    given
        What to plan for, devices as the boards are in order; None: measured.
    fingerprint
        Of the model's file.
    folder
        In memory: for measurements where the disk is full.
    """

    def __init__(
        self, site: Site, heartbeats: Heartbeats, given: Cluster | None, fingerprint: str, folder: Path
    ) -> None:
        self._site, self._beats, self._fingerprint, self._folder = site, heartbeats, fingerprint, folder
        self._known: dict[tuple[str, ...], Cluster] = {}
        if given is not None:
            self._known[site.boards] = given.first(site.ranks, "--cluster")
        self._given = given is not None

    async def of(self, boards: tuple[str, ...], measure: Measure, claimed: Mapping[str, int]) -> Cluster:
        """Return what to plan for on these boards: of a measurement of more of them their part.

        Parameters
        ----------
        claimed
            Bytes of boards that others are about to take.

        Raises
        ------
        HeptiError
            If they cannot be measured.
        """
        if not self._given:
            self._read(self._site.boards)
            self._read(boards)
        if not any(set(boards) <= set(known) for known in self._known):
            self._known[boards] = read_cluster(self._kept(boards, await measure(boards)))
        found = self.known(boards)
        assert found is not None
        free = {board: size - claimed.get(board, 0) for board, size in self.free(boards).items()}
        return self._capped(found, boards, free)

    def ahead(self, boards: tuple[str, ...], had: Mapping[str, int]) -> Cluster | None:
        """Return what to plan for on boards, None where it is not measured; `had` was free before our own ranks."""
        found = self.known(boards)
        return None if found is None else self._capped(found, boards, {**self.free(boards), **had})

    def free(self, boards: Sequence[str]) -> Mapping[str, int]:
        """Return the bytes that are free on boards."""
        return {name: self._beats.boards[name].free_bytes for name in boards}

    def known(self, boards: tuple[str, ...]) -> Cluster | None:
        """Return what is known of these boards, None where they have to be measured, with all their memory."""
        larger = [known for known in self._known if set(boards) <= set(known)]
        if not larger:
            return None
        known = max(larger, key=len)
        return self._known[known].only(range(self._site.ranks) if self._site.alone else map(known.index, boards))

    def _read(self, boards: tuple[str, ...]) -> None:
        path = self._path(boards)
        if boards not in self._known and path.exists():
            with suppress(HeptiError):  # of another version
                self._known[boards] = read_cluster(path)

    def _kept(self, boards: Sequence[str], text: str) -> Path:
        """Write a measurement; return where. On a full disk it is for this service alone."""
        path = self._path(boards)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as temporary:
                temporary.write_text(text)
        except OSError:
            path = self._folder / path.name
            path.write_text(text)
        return path

    def _path(self, boards: Sequence[str]) -> Path:
        return kept_path("cluster.toml", self._site, boards, self._fingerprint)

    def _capped(self, cluster: Cluster, boards: Sequence[str], free: Mapping[str, int]) -> Cluster:
        """Cap every device at what its board has free: other models, and other programs, have the rest."""
        on_one = self._site.ranks if self._site.alone else 1
        devices = []
        for rank, device in enumerate(cluster.devices):
            left = free[self._site.board_of(boards, rank)] // on_one - PROGRAM_BYTES
            devices.append(replace(device, memory_bytes=max(LEAST_BYTES, min(device.memory_bytes, left))))
        return replace(cluster, devices=tuple(devices))
