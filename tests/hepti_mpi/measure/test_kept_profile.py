"""Profiles that are kept, measured again, cannot be kept, or are of busy hosts."""

from dataclasses import replace
from itertools import chain, repeat

import pytest

from hepti_mpi.comm.group import world
from hepti_mpi.measure import steady
from hepti_mpi.session import cli, defaults
from solver.base.cache import profile_path
from solver.base.errors import HeptiError
from solver.cluster.cluster import read_cluster
from tests.kit.clusters import pis


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Return what asks for a profile of one rank; it gives the cluster's speed and what was said."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(steady, "_speed", lambda: 100.0)

    def kept(gflops, **how):
        said = []
        cluster = pis(gflops)
        facts = {"fingerprint": "abc", "date": "2026"}
        measure = lambda: replace(cluster, profile=facts)
        found = defaults.kept_profile("abc", world(), measure, said.append, **how)
        return found.devices[0].compute_flop_per_s / 1e9, " | ".join(said)

    return kept


def test_a_profile_is_kept_until_it_is_measured_anew(ask):
    assert ask(10)[0] == 10
    assert ask(20) == (10, f"planned for the profile of 2026, {profile_path('abc')}")
    speed, said = ask(30, anew=True)

    assert (speed, ask(40)[0]) == (30, 30)
    assert "--measure" in said


def test_what_cannot_be_kept_is_a_note(ask, tmp_path):
    (tmp_path / "hepti").write_text("no folder")
    speed, said = ask(10)

    assert speed == 10
    assert "note: the profile is not kept" in said
    assert ask(20)[0] == 20


def test_a_profile_of_busy_hosts_says_so_itself_and_whenever_it_is_taken(ask, monkeypatch):
    """The two trials around the measurement disagree."""
    speeds = chain([100.0, 50.0], repeat(100.0))
    monkeypatch.setattr(steady, "_speed", lambda: next(speeds))
    _, first = ask(10)
    _, again = ask(10)

    assert "busy" in first
    assert "2.0 times" in first
    assert "busy" in again
    assert read_cluster(profile_path("abc")).profile[steady.BUSY] == "2.0"
    assert "busy" not in ask(10, anew=True)[1]


@pytest.mark.parametrize(("parse", "words"), [(cli.parse, []), (cli.parse_generate, ["--model", "m.h5", "--chat"])])
def test_nothing_is_measured_where_something_says_what_to_plan_for(parse, words):
    for option, value in (("--cluster", "mixed4"), ("--plan", "plan.json")):
        with pytest.raises(HeptiError, match=f"--measure and {option} {value}"):
            parse([*words, "--measure", option, value])
