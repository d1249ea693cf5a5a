"""The report, and the default job."""

import json
import statistics

import pytest

from solver.cluster.cluster import Cluster, Device, Link, write_cluster
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan
from tests.kit.asked import to_lines
from tests.kit.commands import succeeded
from tests.kit.planned import write_mixed_plan
from tests.kit.shared_ranks import jobs

RANKS = 3
ROWS = (1, 200, 17)
MIB = 2**20


@pytest.fixture(scope="module")
def report(converted, tmp_path_factory):
    """Return the report of requests that were computed three times, after two that do not count."""
    folder = tmp_path_factory.mktemp("report")
    checkpoint = converted("bert")
    (folder / "requests.jsonl").write_text(to_lines({"id": f"{rows} rows", "tokens": [9] * rows} for rows in ROWS))
    plan = write_mixed_plan(folder / "plan.json", checkpoint, RANKS, seed=3)
    succeeded(
        jobs(
            RANKS, "--model", checkpoint.path, "--plan", plan, "--input", folder / "requests.jsonl",
            "--output", folder / "answers.jsonl", "--report", folder / "report.json", "--repeat", 3, "--warmup", 2,
        )
    )  # fmt: skip
    assert len((folder / "answers.jsonl").read_text().splitlines()) == len(ROWS)
    return json.loads((folder / "report.json").read_text()) | {"given": json.loads(plan.read_text())}


def test_every_request_has_the_seconds_of_every_pass_that_counts(report):
    assert [request["id"] for request in report["requests"]] == [f"{rows} rows" for rows in ROWS]
    assert all(len(request["seconds"]) == 3 for request in report["requests"])
    every = [seconds for request in report["requests"] for seconds in request["seconds"]]
    assert report["seconds_median"] == statistics.median(every)
    assert report["repeat"] == 3
    assert report["replans"] == []


def test_the_plan_is_the_one_that_was_given(report):
    stages = report["given"]["stages"]

    ran, given = (plan_from_json(json.dumps(report[name]), Plan).stages for name in ("plan", "given"))
    assert ran == given
    assert [entry["device"] for entry in report["per_rank"]] == stages[0]["devices"]
    assert report["predicted_seconds"] is None  # nothing is known of boards that are in no cluster file


def test_every_byte_that_is_sent_is_received(report):
    sent, received = (sum(entry[f"{way}_bytes"] for entry in report["per_rank"]) for way in ("sent", "received"))

    assert sent == received > 0


def test_a_rank_computes_or_waits(report):
    """All requests ran as one batch, so that the seconds of any request are those of the pass."""
    seconds = sum(report["requests"][0]["seconds"])
    spent = [entry["compute_s"] + entry["wait_s"] for entry in report["per_rank"]]

    assert [entry["rank"] for entry in report["per_rank"]] == list(range(RANKS))
    assert all(0 < entry["kernel_s"] < entry["compute_s"] for entry in report["per_rank"])
    # Rank 0 embeds and pools besides; on a busy core the others may wake up, or find out that they are done, late.
    assert 0.3 * seconds < spent[0] < seconds
    assert max(spent) < seconds + 0.3


def test_a_rank_says_what_it_holds(report):
    for entry in report["per_rank"]:
        assert entry["weights_bytes"] > 0
        assert 20 * MIB < entry["peak_rss_bytes"] < 500 * MIB


def test_a_cluster_file_gives_a_prediction_and_names(converted, tmp_path):
    checkpoint = converted("bert")
    (tmp_path / "cluster.toml").write_text(
        'format = "hepti-cluster/1"\n[network]\nbandwidth_mbps = 940\n'
        '[[device]]\nname = "attic"\ngflops = 30\nmemory_gib = 3\n'
        '[[device]]\nname = "cellar"\ngflops = 10\nmemory_gib = 1\n'
    )

    done = succeeded(
        jobs(
            2, "--model", checkpoint.path, "--cluster", tmp_path / "cluster.toml", "--random", 100, "--repeat", 2,
            "--system", "sequence-weighted", "--report", tmp_path / "report.json",
        )
    )  # fmt: skip

    report = json.loads((tmp_path / "report.json").read_text())
    assert [entry["device"] for entry in report["per_rank"]] == ["attic", "cellar"]
    assert report["plan"]["stages"][0]["runs"][0]["mlp"]["rows"] == [75, 25]
    assert report["predicted_seconds"] > 0
    assert report["predicted_for"] == f"the boards of {tmp_path / 'cluster.toml'}"
    assert f"for {report['predicted_for']}".replace(" ", "") in "".join(done.stdout.split())  # A long path is folded.
    assert "75 % of" in done.stdout  # rows: in a line of its own where figures are long


@pytest.mark.parametrize(
    ("requests", "queued"),
    [pytest.param(1, False, marks=pytest.mark.thorough("a batch alone, as of a cluster file")), (6, True)],
)
def test_what_is_predicted_beside_what_compares(requests, queued, converted, tmp_path):
    """Of stages: a batch alone by its seconds, batches that queue by how many come a second."""
    checkpoint = converted("bert")
    (tmp_path / "cluster.toml").write_text(
        'format = "hepti-cluster/1"\n[network]\nbandwidth_mbps = 940\n'
        '[[device]]\nname = "attic"\ngflops = 30\nmemory_gib = 3\n'
        '[[device]]\nname = "cellar"\ngflops = 30\nmemory_gib = 3\n'
    )
    (tmp_path / "in.jsonl").write_text(to_lines({"id": n, "tokens": [9] * 400} for n in range(requests)))

    done = succeeded(
        jobs(
            2, "--model", checkpoint.path, "--cluster", tmp_path / "cluster.toml", "--system", "pipeedge",
            "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", "--report", tmp_path / "report.json",
        )
    )  # fmt: skip

    report = json.loads((tmp_path / "report.json").read_text())
    rate, alone = report["predicted_requests_per_s"], 1 / report["predicted_seconds"]
    assert rate > 1.1 * alone if queued else rate == pytest.approx(alone)
    assert (f"requests a second, predicted {rate:.2f}" in done.stdout) == queued
    assert ("at 400 rows" in done.stdout) != queued


def test_the_report_of_standard_input_lists_what_was_answered(converted, tmp_path):
    """Nothing was asked in the second case: there is a report all the same."""
    for name, lines in (("one", '{"id": 7, "tokens": [1, 2]}\n'), ("none", "")):
        path = tmp_path / f"{name}.json"
        succeeded(jobs(2, "--model", converted("bert").path, "--input", "-", "--report", path, stdin=lines))

    one, none = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "none"))
    assert [request["id"] for request in one["requests"]] == [7]
    assert none["requests"] == []
    assert none["seconds_median"] is None
    assert one["requests_per_s"] is one["predicted_requests_per_s"] is None


def blocks_of(checkpoint):
    """Return what the blocks of a model are called in traces."""
    layers = range(checkpoint.model.config.num_hidden_layers)
    return {f"layer {layer} {block}" for layer in layers for block in ("attention", "mlp")}


def test_the_trace_of_a_rank_alone_names_its_blocks(converted, tmp_path):
    checkpoint = converted("bert")

    succeeded(jobs(1, "--model", checkpoint.path, "--random", 20, "--trace", tmp_path / "trace.json"))

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} == blocks_of(checkpoint) | {"outside the layers", "thread_name"}


def test_the_trace_covers_the_last_request_on_every_rank(converted, tmp_path):
    """Blocks follow each other without gaps, layer by layer; waits lie within; the clocks agree."""
    checkpoint = converted("bert")
    plan = write_mixed_plan(tmp_path / "plan.json", checkpoint, RANKS, seed=4)
    succeeded(
        jobs(
            RANKS, "--model", checkpoint.path, "--plan", plan, "--random", 200, "--repeat", 2, "--warmup", 1,
            "--wire", "float16", "--report", tmp_path / "report.json", "--trace", tmp_path / "trace.json",
        )
    )  # fmt: skip
    report, trace = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("report", "trace"))
    seconds = report["requests"][0]["seconds"][-1]

    for rank in range(RANKS):
        mine = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == rank]
        blocks = [event for event in mine if event["cat"] == "compute"]
        assert {event["name"] for event in blocks} <= blocks_of(checkpoint) | {"outside the layers"}
        took_s = sum(event["dur"] for event in blocks) / 1e6
        assert 0 < took_s < seconds + 0.05
        assert sum(event["dur"] for event in mine if event["cat"] == "wait") / 1e6 < took_s
        assert max(event["ts"] + event["dur"] for event in mine) / 1e6 < seconds + 0.05


def test_replicas_answer_every_request_in_order_and_say_how_many_a_second(converted, tmp_path):
    """Two replicas, one of them two stages: who has which layers, and one request after the other in the answers."""
    checkpoint = converted("bert", heads=5, hidden=40, ffn=83)
    layers = checkpoint.model.config.num_hidden_layers
    rows = {"cut": "rows", "rows": [1]}
    spans = [(["a"], 0, layers), (["b"], 0, 1), (["c"], 1, layers)]
    stages = [
        {"devices": devices, "runs": [{"layers": [start, stop], "attention": rows, "mlp": rows}]}
        for devices, start, stop in spans
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"format": "hepti-plan/2", "model": {"name": "bert"}, "stages": stages}))
    (tmp_path / "in.jsonl").write_text(to_lines([{"id": n, "tokens": [n % 7 + 1] * 300} for n in range(20)]))

    done = jobs(
        3, "--model", checkpoint.path, "--plan", plan, "--input", tmp_path / "in.jsonl",
        "--output", tmp_path / "out.jsonl", "--report", tmp_path / "report.json",
    )  # fmt: skip

    succeeded(done)
    assert [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == list(range(20))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["requests_per_s"] > 0
    assert "requests a second" in done.stdout
    assert f"1-{layers - 1}" in done.stdout
    assert all(entry["sent_bytes"] > 0 for entry in report["per_rank"][1:])


def test_numbers_travel_as_the_plan_file_says_or_as_is_asked(converted, tmp_path):
    """And so much is predicted: the file is made by hand, for no length."""
    checkpoint, reports = converted("bert"), []
    share = {"cut": "rows", "rows": [1, 1]}
    runs = [{"layers": [0, checkpoint.model.config.num_hidden_layers], "attention": share, "mlp": share}]
    plan = {"format": "hepti-plan/2", "model": {"name": "bert"}, "devices": ["a", "b"], "stages": [{"runs": runs}]}
    cluster = tmp_path / "boards.toml"
    write_cluster(Cluster(tuple(Device(name, 1e10, 1 << 32) for name in "ab"), Link(1e5, 1e-4)), cluster)

    for wire, words in ((None, ()), ("int8", ()), (None, ("--wire", "int8")), ("int8", ("--wire", "float32"))):
        (tmp_path / "plan.json").write_text(json.dumps(plan | ({"wire": wire} if wire else {})))
        succeeded(
            jobs(
                2, "--model", checkpoint.path, "--plan", tmp_path / "plan.json", "--cluster", cluster, "--random", 9,
                "--report", tmp_path / "report.json", *words,
            )
        )  # fmt: skip
        report = json.loads((tmp_path / "report.json").read_text())
        sent = [entry["sent_bytes"] for entry in report["per_rank"]]
        reports.append((report["wire"], report["predicted_seconds"], report["predicted_rows"], sent))

    exact, coded, *asked = reports
    assert (exact[0], coded[0]) == ("float32", "int8")
    assert exact[2] == coded[2] == 9
    assert coded[1] < exact[1]
    assert max(coded[3]) < min(exact[3])
    assert asked == [coded, exact]


@pytest.mark.parametrize(
    ("wire", "bits", "says"),
    [("int4", "4", "int4 on the wire: the hidden number"), ("adaptive", "32", "20 with 32 bits")],
)
def test_the_report_says_with_how_many_bits_stages_send(wire, bits, says, converted, tmp_path):
    """Two stages on one host, whose connection is fast: what adapts has no reason to."""
    checkpoint = converted("bert")
    rows, layers = {"cut": "rows", "rows": [1]}, checkpoint.model.config.num_hidden_layers
    stages = [
        {"devices": [device], "runs": [{"layers": span, "attention": rows, "mlp": rows}]}
        for device, span in (("a", [0, 1]), ("b", [1, layers]))
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"format": "hepti-plan/2", "model": {"name": "bert"}, "stages": stages}))

    done = jobs(
        2, "--model", checkpoint.path, "--plan", plan, "--random", 9, "--repeat", 10, "--wire", wire,
        "--report", tmp_path / "report.json",
    )  # fmt: skip

    succeeded(done)
    assert says in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [entry["batches_by_bits"] for entry in report["per_rank"]] == [{bits: 10}] * 2
