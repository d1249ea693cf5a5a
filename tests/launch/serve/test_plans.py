"""Plans for when a board is lost, made ahead by the planner's command for every kind of model."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from launch.serve.served import ServedModel, Surroundings, served_file
from launch.watch.boards import Heartbeats
from launch.watch.site import Site
from solver.cluster.cluster import PROGRAM_BYTES
from tests.kit.clusters import pis
from tests.kit.networks import write_classifier


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """Return what makes the plans of a weights file, by the boards' names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # At the lowest priority a plan takes what other programs leave: beside two busy ones 103 s.
    monkeypatch.setattr("launch.serve.plans.LAST", ())

    def of(path, boards=("a", "b", "c"), **lengths):
        site = Site(boards, len(boards))
        starter = SimpleNamespace(heartbeats=Heartbeats(site, "", "", tmp_path, print), site=site, folder=tmp_path)
        around = Surroundings(starter, None, lengths.get("sequences"), lengths.get("context"), None, None, print)
        return ServedModel(served_file(path), around, 1).programs.plans

    return of


def made(plans, boards):
    """Return the plan that is made for boards, so slow that encoders are split."""
    asyncio.run(plans.make(boards, pis(0.01, 0.01), ahead=True))
    return json.loads(plans.of(plans.used(boards)))


@pytest.mark.slow("an encoder of which boards share the blocks")
@pytest.mark.parametrize("name", [pytest.param("mini", marks=pytest.mark.thorough("as vit")), "vit"])
def test_encoders_of_texts_and_images_are_planned_for_what_is_typical(name, encoders, plans):
    assert made(plans(encoders[name]), ("a", "b"))["devices"] == ["pi-0", "pi-1"]


def test_a_language_model_is_planned_for_what_the_service_says(tiny, plans):
    plan = made(plans(tiny.path, sequences=2, context=99), ("a", "b"))

    assert (plan["sequences"], plan["context"]) == (2, 99)


def test_a_network_is_planned_for_an_image(tmp_path, plans):
    write_classifier(tmp_path / "sees.h5")

    assert made(plans(tmp_path / "sees.h5"), ("a", "b"))["devices"] == ["pi-0"]


def test_of_boards_where_some_have_nothing_the_others_are_planned_for_alone(tiny, plans):
    """A tiny model is the fastest on one board; without one that has nothing the plan is the same."""
    known = plans(tiny.path)

    assert known.used(("a", "b", "c")) is None
    asyncio.run(known.make(("a", "b", "c"), pis(24.6, 10, 10), ahead=False))
    assert known.used(("a", "b", "c")) == known.used(("a", "b")) == known.used(("a",)) == ("a",)
    assert known.used(("b", "c")) is None
    assert json.loads(known.of(("a",)))["devices"] == ["pi-0"]
    assert list(known.needs(("a",))) == ["a"]
    assert known.needs(("a",))["a"] > PROGRAM_BYTES


def test_a_plan_that_ran_stays_until_it_is_forgotten(tiny, plans):
    known = plans(tiny.path)
    known.keep(("a",), "first")

    assert known.of(("a",)) == "first"
    known.forget(("a",))
    assert known.of(("a",)) is None


def test_the_next_service_on_the_same_boards_has_what_ran_and_what_was_made_ahead(tiny, plans):
    first = plans(tiny.path)
    asyncio.run(first.make(("a", "b", "c"), pis(24.6, 10, 10), ahead=False))
    assert plans(tiny.path).used(("a", "b")) is None  # it has not run yet
    first.keep(("a",), "ran")
    asyncio.run(first.make(("b", "c"), pis(10, 10), ahead=True))
    second = plans(tiny.path)

    assert second.of(("a",)) == "ran"
    assert second.used(("a", "b")) == ("a",)
    assert second.used(("b", "c")) == ("b",)
    assert plans(tiny.path, ("a", "b")).of(("a",)) is None
    assert plans(tiny.path, context=99).of(("a",)) is None
    second.forget_all()
    assert plans(tiny.path).of(("a",)) is None


def test_a_file_of_plans_that_nobody_can_read_counts_for_none(tiny, plans):
    first = plans(tiny.path)
    first.keep(("a",), "ran")
    first._kept.write_text('{"plans": 1}')

    assert plans(tiny.path).of(("a",)) is None


def test_where_nothing_fits_there_is_no_plan(encoders, plans):
    known = plans(encoders["mini"])
    asyncio.run(known.make(("a",), pis(24.6, memory_gib=0.001), ahead=True))

    assert known.of(("a",)) is None
