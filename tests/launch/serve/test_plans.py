"""Plans for when a board is lost, made ahead by the planner's command for every kind of model."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from launch.serve.served import ServedModel, Surroundings, served_file
from tests.commands.networks import write_classifier
from tests.solver.clusters import pis


@pytest.fixture
def plans(tmp_path):
    """Return what makes the plans of a weights file."""

    def of(path, **lengths):
        starter = SimpleNamespace(heartbeats=None, site=None, folder=tmp_path)
        around = Surroundings(starter, None, None, lengths.get("sequences"), lengths.get("context"), None, print)
        return ServedModel(served_file(path), around, 1)._plans

    return of


def made(plans, boards):
    """Return the plan that is made for boards."""
    asyncio.run(plans.make_ahead(boards, pis(24.6, 10)))
    return json.loads(plans.of(boards))


@pytest.mark.parametrize("name", ["mini", "vit"])
def test_encoders_of_texts_and_images_are_planned_for_what_is_typical(name, encoders, plans):
    assert made(plans(encoders[name]), ("a", "b"))["devices"] == ["pi-0", "pi-1"]


def test_a_language_model_is_planned_for_what_the_service_says(tiny, plans):
    plan = made(plans(tiny.path, sequences=2, context=99), ("a", "b"))

    assert (plan["sequences"], plan["context"]) == (2, 99)


def test_a_network_is_planned_for_an_image(tmp_path, plans):
    write_classifier(tmp_path / "sees.h5")

    assert made(plans(tmp_path / "sees.h5"), ("a", "b"))["devices"] == ["pi-0", "pi-1"]


def test_a_plan_that_ran_stays_until_it_is_forgotten(tiny, plans):
    known = plans(tiny.path)
    known.keep(("a",), "first")
    known.keep(("a",), "second")

    assert known.of(("a",)) == "first"
    known.forget(("a",))
    assert known.of(("a",)) is None


def test_where_nothing_fits_there_is_no_plan(encoders, plans):
    known = plans(encoders["mini"])
    asyncio.run(known.make_ahead(("a",), pis(24.6, memory_gib=0.001)))

    assert known.of(("a",)) is None
