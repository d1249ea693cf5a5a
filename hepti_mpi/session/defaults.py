"""What `mpirun -np 4 python -m hepti_mpi` without arguments runs: a real sentence encoder on example boards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path

from hepti_mpi.comm.group import Group
from hepti_mpi.measure.steady import doubted, measured
from solver.base.cache import cache_folder, profile_path
from solver.base.errors import HeptiError, explained
from solver.base.hub import CHAT, SENTENCES, packaged
from solver.cluster.cluster import Cluster, read_cluster, write_cluster
from weights.file.store import WeightsFile

DEMO = Path(str(files("hepti_mpi") / "demo"))
EXAMPLE = "hepti_mpi/demo/cluster.toml"
Say = Callable[[str], object]
READ_BYTES_PER_S = 50e6  # weights of a card in a Raspberry Pi


def kept_profile(
    fingerprint: str, group: Group, measure: Callable[[], Cluster], say: Say | None, *, anew: bool = False
) -> Cluster:
    """Return what was measured of these hosts before, or now; a step of all ranks, of which rank 0 tells the person.

    Parameters
    ----------
    fingerprint
        Of all that the profile is for.
    measure
        Measures; every rank calls it.
    say
        Rank 0's.
    anew
        Whether it is measured also where it is known.
    """
    path = profile_path(fingerprint)

    def known() -> Cluster | None:
        with suppress(HeptiError):  # not measured yet, or written by another version
            return None if anew else read_cluster(path)
        return None

    cluster = group.from_root(known if say else None)
    if cluster is not None:
        if say:
            say(f"planned for the profile of {cluster.profile['date']}, {path}")
            _say_doubt(cluster, say)
        return cluster
    if say:
        why = "as --measure says" if anew else "these hosts have no profile for this model yet"
        say(f"{why}: measuring them, which takes some seconds")
    cluster = measured(measure, group)
    if say:
        _say_doubt(cluster, say)
        try:
            _make_folder(path)
            write_cluster(cluster, path)
        except (HeptiError, OSError) as error:
            say(f"note: the profile is not kept, and the next run measures again: {error}")
    return cluster


def _say_doubt(cluster: Cluster, say: Say) -> None:
    if (doubt := doubted(cluster)) is not None:
        say(f"note: {doubt}")


def default_model() -> Path:
    """Return all-MiniLM-L6-v2 as a weights file, converted to the user's cache when it is not there yet.

    Raises
    ------
    HeptiError
        If the package that carries the checkpoint is not installed, or the cache takes no files.
    """
    source = _fetched(SENTENCES)
    path = cache_folder() / "all-minilm-l6-v2.h5"
    try:
        WeightsFile(path).close()
    except HeptiError:  # not there yet, or of another version
        from weights.convert.convert import convert  # rank 0's, too

        _make_folder(path)
        convert(source, path)
    return path


def default_chat() -> Path:
    """Return SmolLM2-135M-Instruct, as `hepti get` has fetched it.

    Raises
    ------
    HeptiError
        If it is not there.
    """
    return _fetched(CHAT)


def _fetched(name: str) -> Path:
    found = packaged(name).found()
    if found is None:
        raise HeptiError(f"no --model given, and the default one is not here: hepti get {name} fetches it")
    return found


def _make_folder(path: Path) -> None:
    with explained(f"cannot make {path.parent}", OSError):
        path.parent.mkdir(parents=True, exist_ok=True)


def default_sentences() -> list[str]:
    """Return sentences of which each has a near one."""
    return (DEMO / "sentences.txt").read_text().splitlines()


def example_cluster(ranks: int) -> Cluster:
    """Return example boards for any number of ranks, in the absence of a measurement."""
    four = read_cluster(DEMO.parents[1] / EXAMPLE)
    devices = islice(cycle(four.devices), ranks)
    return replace(four, devices=tuple(replace(device, name=f"pi-{rank}") for rank, device in enumerate(devices)))
