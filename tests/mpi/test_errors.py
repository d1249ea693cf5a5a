"""Who says what is wrong, and that nobody waits for a rank that has gone."""

from contextlib import suppress

import pytest

from hepti_mpi.__main__ import main
from hepti_mpi.comm.group import Group
from hepti_mpi.measure import profile_command
from hepti_mpi.session import cli, job
from solver.base.errors import HeptiError

JOBS = pytest.mark.parametrize(
    ("room", "name", "words"),
    [(job, "run_job", []), (profile_command, "run", ["profile", "--model", "vit-base", "--out", "x.toml"])],
    ids=["main job", "profile"],
)


@pytest.fixture
def aborted(monkeypatch):
    """Return what ranks say when they end the job, and with which code; here it goes on."""
    said = []

    def abort(group, message, code):
        said.append((group.rank, message, code))
        raise SystemExit(code)

    monkeypatch.setattr(Group, "abort", abort)
    return said


@pytest.mark.sizes
@JOBS
@pytest.mark.parametrize("at", [0, -1], ids=["rank 0", "last rank"])
def test_one_ranks_complaint_behind_set_up_ends_the_job_with_its_name(
    at, room, name, words, world, monkeypatch, aborted
):
    """Its file fails its checksum while the plan changes, say: the others wait for its rows."""
    victim = range(world.size)[at]

    def run(options, group):
        if group.rank == victim:
            raise HeptiError("tensor up is damaged")
        return 0

    monkeypatch.setattr(room, name, run)
    with suppress(SystemExit):
        main(words)

    assert aborted == ([(victim, "tensor up is damaged", 2)] if world.rank == victim else [])


@pytest.mark.sizes
@JOBS
def test_a_complaint_that_all_ranks_have_is_said_once_and_nobody_aborts(
    room, name, words, world, monkeypatch, aborted, capsys
):
    def run(options, group):
        return group.on_all(lambda: refuse(group.rank))

    def refuse(rank):
        if rank == world.size - 1:
            raise HeptiError("no model there")

    monkeypatch.setattr(room, name, run)

    assert main(words) == (2 if world.rank == 0 else 0)
    where = f" (rank {world.size - 1})" if world.size > 1 else ""
    assert capsys.readouterr().err == (f"python -m hepti_mpi: no model there{where}\n" if world.rank == 0 else "")
    assert not aborted


@pytest.mark.sizes
@JOBS
def test_an_option_that_one_rank_cannot_have_is_refused_on_all(room, name, words, world, monkeypatch, aborted, capsys):
    """What may be said may differ from rank to rank: the others would wait for the one that refuses."""
    parser = profile_command.parser

    def check(*_):
        if world.rank == world.size - 1:
            raise HeptiError("not installed")

    class Refuses:
        def parse_args(self, arguments):
            check()
            return parser().parse_args(arguments)

    monkeypatch.setattr(cli, "check_precision", check)
    monkeypatch.setattr(profile_command, "parser", Refuses)
    monkeypatch.setattr(room, name, lambda options, group: 7)

    assert main(words) == (2 if world.rank == 0 else 0)
    assert "not installed" in capsys.readouterr().err or world.rank > 0
    assert not aborted
