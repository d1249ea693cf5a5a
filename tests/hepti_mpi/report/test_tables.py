"""What a person sees holds what was computed."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from hepti_mpi.report.tables import show_answers, show_cluster, show_ranks, terminal
from hepti_mpi.requests.inputs import Request
from solver.base.spans import Partition, Span
from solver.model.blocks import Cut
from solver.model.named import named_model
from solver.plan.plan import BlockPlan, Plan, Stage, layer_by_rows
from tests.kit.clusters import pis

BLOCKS = named_model("bert-base").blocks


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100, markup=False, emoji=False)


def shown(console):
    return console.file.getvalue()


def requests(*texts):
    return [Request(number, [1], 1, text) for number, text in enumerate(texts, start=1)]


def row_of(console, start):
    """Return the cells of the first row whose first cell is `start`."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown(console).splitlines() if "│" in line]
    return next(row for row in rows if row[0] == start)


def test_each_text_stands_beside_its_nearest(console):
    """Nearest by direction, not by length; never itself. Both go by their ids, as in a file of answers."""
    answers = [{"embedding": vector} for vector in ([1.0, 0.0], [0.0, 9.0], [5.0, 0.5])]

    show_answers(console, requests("one", "two", "three"), answers)

    assert row_of(console, "[1] one") == ["[1] one", "[3] three", "0.995"]
    assert row_of(console, "[3] three") == ["[3] three", "[1] one", "0.995"]
    assert row_of(console, "[2] two") == ["[2] two", "[3] three", "0.100"]


def test_an_embedding_of_zeros_is_far_from_everything(console):
    answers = [{"embedding": vector} for vector in ([0.0, 0.0], [1.0, 0.0])]

    show_answers(console, requests("nothing", "one"), answers)

    assert row_of(console, "[2] one") == ["[2] one", "[1] nothing", "0.000"]


def test_one_embedding_shows_its_width_and_first_values(console):
    show_answers(console, requests("one"), [{"embedding": [0.25, -1.0, 0.5, 0.125, 9.0]}])

    assert row_of(console, "[1] one") == ["[1] one", "5", "0.2500, -1.0000, 0.5000, 0.1250, …"]


def test_the_likeliest_labels_come_with_their_scores(console):
    tops = [("calm", 0.75), ("glad", 0.25)], [("[/b]", 0.9), ("b", 0.05), ("c", 0.03), ("d", 0.02)]
    answers = [{"label": top[0][0], "top5": [{"label": label, "score": score} for label, score in top]} for top in tops]

    show_answers(console, requests("one", ":warning: two"), answers)

    assert row_of(console, "[1] one") == ["[1] one", "calm", "0.750"]
    assert row_of(console, "[2] :warning: two") == ["[2] :warning: two", "[/b]", "0.900"]
    assert row_of(console, "") == ["", "glad", "0.250"]
    assert "0.030" in shown(console)
    assert "0.020" not in shown(console)


def test_a_text_that_was_cut_is_said_to_be(console):
    """By its tokens that were read."""
    cut = Request(1, [1] * 128, 128, "a long text", truncated=True)

    show_answers(console, [cut], [{"label": "calm", "top5": [{"label": "calm", "score": 1.0}]}])

    assert "cut at 128 tokens" in shown(console)


def test_of_a_long_text_the_beginning_is_shown(console):
    """Or the screen is full of two of them; what the model has read of it is said all the same."""
    read = Request("a", [1] * 128, 128, "word " * 3000, truncated=True)
    answers = [{"embedding": [1.0, 0.0]}, {"embedding": [0.5, 0.5]}]

    show_answers(console, [read, Request("b", [1], 1, "short")], answers)

    said = " ".join(shown(console).split())
    assert said.count("word") == 2 * 13
    assert said.count("tokens)") == 2
    assert len(shown(console).splitlines()) < 14


def test_what_a_terminal_obeys_is_shown_as_python_writes_it(console):
    """Ids, texts and a model's labels are a stranger's; line ends of a text are blanks."""
    top = [{"label": "calm\x1b[2J", "score": 1.0}]

    show_answers(console, [Request("\x1b]0;X\x07é", [1], 1, "a\x00\n中\x9b1m 😀")], [{"label": "calm", "top5": top}])

    assert row_of(console, r"[\x1b]0;X\x07é] a\x00 中\x9b1m 😀")[1] == r"calm\x1b[2J"


def test_requests_without_a_text_go_by_their_id(console):
    show_answers(console, [Request("cat.png", [1], 1)], [{"label": "cat", "top5": [{"label": "cat", "score": 1.0}]}])

    assert row_of(console, "cat.png") == ["cat.png", "cat", "1.000"]


@pytest.mark.parametrize("predicted", [0.0125, None])
def test_ranks_stand_with_their_shares_and_the_figures_of_one_pass(predicted, console, kept):
    block = BlockPlan("attention", Cut.BLOCK, inner=Partition.of_counts([11, 1]))
    _, rows = layer_by_rows(BLOCKS, (0.7, 0.3))
    plan = Plan((Stage(("pi-0", "pi-1"), ((Span(0, 2), (block, rows)),)),), "bert", rows=64)
    ranks = [
        {"rank": number, "device": name, "compute_s": 0.4, "kernel_s": kernel_s, "wait_s": 0.1, "sent_bytes": 4096}
        | {"weights_bytes": 3 << 19}
        for number, (name, kernel_s) in enumerate(zip(plan.devices, (0.39, 0.38), strict=True))
    ]
    report = {
        "per_rank": ranks,
        "repeat": 4,
        "seconds_median": 0.02,
        "predicted_rows": 64.0,
        "predicted_for": "the boards of pis.toml",
        "predicted_seconds": predicted,
    }

    show_ranks(console, report, plan, queued=False)

    assert row_of(console, "0") == ["0", "pi-0", "11 heads", "70 % of rows", "1.5", "100.0", "25.0", "1"]
    assert row_of(console, "1") == ["1", "pi-1", "1 head", "30 % of rows", "1.5", "100.0", "25.0", "1"]
    assert ("predicted 12.5 ms" in shown(console)) == (predicted is not None)
    assert "engine: 5.0 ms of compute at most, on pi-1" in shown(console)
    kept(shown(console))


@pytest.mark.parametrize("predicted", [40.0, None])
def test_of_batches_that_queue_the_rates_stand_beside_each_other(predicted, console, kept):
    """What one batch alone takes is not to be held against what it took behind others."""
    rows = layer_by_rows(BLOCKS, (1.0,))
    stages = tuple(Stage((name,), ((span, rows),)) for name, span in (("pi-0", Span(0, 1)), ("pi-1", Span(1, 2))))
    ranks = [
        {"rank": rank, "device": f"pi-{rank}", "compute_s": 1, "kernel_s": 1, "wait_s": 1, "sent_bytes": 1}
        | {"weights_bytes": 1}
        for rank in range(2)
    ]
    report = {
        "per_rank": ranks,
        "repeat": 1,
        "seconds_median": 0.9,
        "predicted_rows": 64.0,
        "predicted_for": "the boards of pis.toml",
        "predicted_seconds": 0.1,
        "requests_per_s": 35.25,
        "predicted_requests_per_s": predicted,
    }

    show_ranks(console, report, Plan(stages, "bert", rows=64, devices=("pi-0", "pi-1")), queued=True)

    last = " ".join(shown(console).split("kernels\n")[-1].split())
    assert last.startswith("35.25 requests a second")
    assert ("predicted 40.00" in last) == (predicted is not None)
    kept(last)


def test_shares_fit_80_columns_and_headings_break_first(kept):
    console = Console(file=io.StringIO(), width=80, markup=False, emoji=False)
    block = BlockPlan("attention", Cut.BLOCK, inner=Partition.of_counts([11, 1]))
    _, rows = layer_by_rows(BLOCKS, (0.7, 0.3))
    plan = Plan((Stage(("pi-0", "pi-1"), ((Span(0, 2), (block, rows)),)),), "bert", rows=64)
    ranks = [
        {"rank": rank, "device": name, "compute_s": 0.1, "kernel_s": 0.1, "wait_s": 0.025, "sent_bytes": 1024}
        | {"weights_bytes": 3 << 19}
        for rank, name in enumerate(plan.devices)
    ]
    report = {"per_rank": ranks, "repeat": 1, "seconds_median": 0.02, "predicted_seconds": None}

    show_ranks(console, report, plan, queued=False)

    assert max(map(len, shown(console).splitlines())) == 80
    kept(shown(console))


def test_what_was_measured_says_with_which_kernels(console):
    facts = {"model": "bert-large", "backend": "onnxruntime", "precision": "int8"}

    show_cluster(console, replace(pis(10, 20), profile=facts))

    words = " ".join(shown(console).split())
    assert all(fact in words.split("┏")[0] for fact in facts.values())


def test_stages_within_layers_are_explained(console, kept):
    rows = layer_by_rows(BLOCKS, (1.0,))
    halves = (Span(0, 2), Span(2, 4))
    stages = tuple(
        Stage((name,), ((Span(0, 1), rows),), half) for name, half in zip(("pi-0", "pi-1"), halves, strict=True)
    )
    ranks = [
        {"rank": number, "device": f"pi-{number}", "compute_s": 0.4, "kernel_s": 0.4, "wait_s": 0.1, "sent_bytes": 0}
        | {"weights_bytes": 0}
        for number in range(2)
    ]
    report = {"per_rank": ranks, "repeat": 1, "seconds_median": 0.02, "predicted_seconds": None, "requests_per_s": 1.0}

    show_ranks(console, report, Plan(stages, "bert", rows=64), queued=False)

    assert row_of(console, "1")[:3] == ["1", "pi-1", "0.2-0.3"]
    (line,) = (line for line in shown(console).splitlines() if "sub-layer" in line)
    kept(line)


def test_a_file_gets_tables_of_80_characters_without_colours(capfd):
    console = terminal(stderr=False)

    assert not console.is_terminal
    assert console.width == 80
