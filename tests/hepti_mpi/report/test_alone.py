"""The split is held against the best board alone, and a prediction that is far off is said to be."""

import pytest

from hepti_mpi.comm.hosts import Place
from hepti_mpi.report.alone import (
    BoardAlone,
    Pace,
    alone_line,
    boards_planned_for,
    decoder_alone,
    doubt,
    encoder_alone,
    milliseconds,
    network_alone,
    requests_a_second,
    runs_here,
)
from hepti_mpi.session import cli
from solver.model.named import named_model
from solver.model.named_decoders import named_decoder
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.encoders.stages import predict_plan
from solver.systems import make_plan
from tests.kit.clusters import pis
from tests.kit.networks import classifier

BOTH = ("pi-0", "pi-1")


@pytest.mark.parametrize(
    ("pace", "alone_s"),
    [(Pace(0.1, 0.09), 0.2), (Pace(0.1, None), 0.05), (Pace(0.1, 0.1), 0.102), (Pace(0.1, 0.3), 0.6)],
    ids=["the split", "one board", "alike", "by predictions"],
)
def test_the_line_says_who_is_faster(pace, alone_s, kept):
    kept(alone_line(pace, BOTH, BoardAlone("pi-1", alone_s), "these hosts", milliseconds, here=True))


def test_rates_are_compared_the_other_way_round(kept):
    kept(alone_line(Pace(0.1, 0.1), BOTH, BoardAlone("pi-0", 0.2), "these hosts", requests_a_second, here=True))


def test_where_one_board_has_all_there_is_no_split(kept):
    kept(alone_line(Pace(0.1, 0.2), ["pi-1"], BoardAlone("pi-1", 0.2), "these hosts", milliseconds, here=True))


def test_where_no_board_holds_the_model_that_is_said(kept):
    kept(alone_line(Pace(0.1, 0.2), BOTH, None, "the boards of small.toml", milliseconds, here=False))


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        (Pace(0.25, 0.1), "2.5 times as long as predicted"),
        (Pace(0.04, 0.1), "2.5 times as fast as predicted"),
        (Pace(0.19, 0.1), None),
        (Pace(0.06, 0.1), None),
        (Pace(0.06, None), None),
        (Pace(0.0012, 0.0004), None),
        (Pace(0.0004, 0.0012), None),
        (Pace(0.003, 0.001), "3.0 times as long as predicted"),
    ],
)
def test_what_is_twice_as_fast_or_slow_as_predicted_is_doubted_both_ways(pace, words, kept):
    said = doubt(pace, "the boards of mine.toml", pis(1, 2), kept=False, here=True)

    if words is None:
        assert said is None
    else:
        assert said.startswith(f"{words}: ")
        kept(said)


def test_what_is_predicted_for_other_boards_is_compared_with_predictions_alone_and_not_doubted(kept):
    pace, alone = Pace(1.0, 0.1), BoardAlone("pi-1", 0.2)

    assert doubt(pace, "the boards of mixed4", pis(1, 2), kept=False, here=False) is None
    kept(alone_line(pace, BOTH, alone, "the boards of mixed4", milliseconds, here=False))
    kept(alone_line(Pace(1.0, None), BOTH, alone, "the boards of plan.json", milliseconds, here=False))


@pytest.mark.parametrize(
    ("hosts", "here"),
    [(["pi-0", "pi-1"], True), (["pi-1", "pi-0"], False), (["vm", "vm"], False), (["pi-0", "pi-1", "pi-2"], False)],
)
def test_boards_are_these_hosts_where_each_is_the_host_of_its_rank(hosts, here):
    assert runs_here(BOTH, [Place(host, 4, 4) for host in hosts]) == here


def test_of_a_kept_profile_it_is_said_how_it_is_measured_again():
    cluster = pis(1, 2)
    cluster = type(cluster)(cluster.devices, cluster.links, profile={"fingerprint": "abc", "date": "1970"})

    said = doubt(Pace(1.0, 0.1), "these hosts", cluster, kept=True, here=True)

    assert said.startswith("10.0 times as long as predicted")
    assert "1970" in said
    assert "--measure" in said


def test_the_best_board_is_the_fastest_that_holds_the_model():
    spec = named_model("bert-base")
    cluster = pis(10, 40, 20)

    found = encoder_alone(spec, cluster, 50, Wire.FLOAT32)

    plan = make_plan("single:pi-1", spec, cluster, 50)
    assert found == BoardAlone("pi-1", predict_plan(spec, cluster, plan, 50).seconds)
    assert network_alone(classifier()[0], cluster, Wire.FLOAT32).seconds > 0


def test_a_board_without_room_is_passed_over():
    """In float32 the model takes 4.6 GiB."""
    model, asked = named_decoder("llama-3.2-1b"), TokenRequest(precision="float32")
    roomy, tight = pis(10, 20), pis(10, 20, memory_gib=2)

    assert decoder_alone(model, roomy, asked, 80).name == "pi-1"
    assert decoder_alone(model, tight, asked, 80) is None


@pytest.mark.parametrize(
    ("words", "here"),
    [([], True), ([], False), (["--cluster", "mixed4"], True), (["--plan", "plan.json"], True)],
    ids=["hosts", "ranks", "cluster", "plan"],
)
def test_whose_seconds_are_predicted_is_said_in_words(words, here, kept):
    kept(boards_planned_for(cli.parse(words), here=here))
