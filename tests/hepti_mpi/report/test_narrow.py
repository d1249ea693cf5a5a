"""In 80 columns the tables of a run are readable: each is kept as it is."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hepti_mpi.decoding.report import show_run
from hepti_mpi.engine.stack import Meter
from hepti_mpi.report.network_report import show_network
from hepti_mpi.report.ranks import network_rank_report
from hepti_mpi.report.tables import show_answers, show_cluster, show_ranks
from hepti_mpi.requests.inputs import Request
from solver.cluster.named import find_cluster
from solver.model.named import named_model
from solver.model.named_decoders import named_decoder
from solver.schedule.decoders.asked import TokenRequest
from solver.systems import make_plan
from solver.systems.decoders import plan_decoder
from tests.kit import narrow
from tests.kit.convnets import plan_of
from tests.kit.networks import classifier

SENTENCES = (
    "Four small computers share one large model.",
    "The work is split unevenly among the Raspberry Pis.",
    "Interest rates rose again this quarter.",
)
FOR = "the boards of /home/me/boards/of/the/kitchen/and/the/attic/pis.toml"


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=narrow.WIDTH, markup=False, emoji=False)


def check(name, console):
    narrow.check(Path(__file__).with_suffix(".txt"), name, console.file.getvalue(), figures=False)


def ranks(devices, **more):
    """Return what ranks tell of themselves."""
    facts = {
        "compute_s": 0.61,
        "kernel_s": 0.5775,
        "wait_s": 0.12,
        "sent_bytes": 9 << 20,
        "weights_bytes": 300 << 20,
        **more,
    }
    return [{"rank": rank, "device": device, **facts} for rank, device in enumerate(devices)]


def test_answers(console):
    requests = [Request(number, [1], 1, text) for number, text in enumerate(SENTENCES, start=1)]
    vectors = ([1.0, 0.1, 0.0], [1.0, 0.3, 0.0], [0.0, 0.2, 1.0])

    show_answers(console, requests, [{"embedding": [*vector]} for vector in vectors])

    check("embeddings", console)


def test_labels(console):
    requests = [Request(number, [1], 1, text) for number, text in enumerate(SENTENCES, start=1)]
    best = [{"label": "computers", "score": 0.75}, {"label": "money", "score": 0.25}]

    show_answers(console, requests, [{"label": "computers", "top5": best}] * 3)

    check("labels", console)


@pytest.mark.parametrize("system", ["megatron", "sequence", "pipeedge"])
def test_a_run_of_an_encoder(system, console):
    plan = make_plan(system, named_model("bert-large"), find_cluster("mixed4"), 256)
    report = {
        "per_rank": ranks(plan.devices), "repeat": 3, "seconds_median": 0.8271, "predicted_rows": 256.0,
        "predicted_for": FOR, "predicted_seconds": 0.8071, "requests_per_s": 1.21, "predicted_requests_per_s": 1.3,
    }  # fmt: skip

    show_ranks(console, report, plan, queued=system == "pipeedge")

    check(f"run of an encoder by {system}", console)


def test_a_run_of_a_network(console):
    net, _ = classifier()
    plan = plan_of(net, [(2, "rows", [0.25, 0.75]), (len(net.nodes), "rows", [0, 1])], 2)
    meters = [Meter(2.0, 0.5, 4096, 0, 1.98), Meter(1.0, 0.0, 2048, 0, 0.9)]
    told = [network_rank_report(net, plan, meter, rank, "onnxruntime") for rank, meter in enumerate(meters)]
    report = {
        "requests_answered": 2, "per_rank": told,
        "seconds_median": 0.5, "predicted_seconds": 0.25, "predicted_for": FOR, "requests_per_s": 1.5,
        "predicted_requests_per_s": None,
    }  # fmt: skip

    show_network(console, report, net, [plan])

    check("run of a network", console)


def test_a_run_of_a_language_model(console):
    model = named_decoder("llama-3.2-1b")
    plan = plan_decoder("megatron", model, find_cluster("mixed4"), TokenRequest())
    report = {
        "per_rank": ranks(plan.devices, peak_rss_bytes=1097 << 20), "requests_answered": 4, "tokens_per_s_median": 15.1,
        "first_s_median": 1.21, "predicted": {"token_s": 0.065, "first_s": 1.3}, "predicted_for": FOR,
    }  # fmt: skip

    show_run(console, report, model, plan)

    check("run of a language model", console)


def test_what_was_measured(console):
    measured = {"model": "bert-large", "backend": "onnxruntime", "precision": "float32"}

    show_cluster(console, replace(find_cluster("mixed4"), profile=measured))

    check("profile", console)
