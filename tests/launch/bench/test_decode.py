"""`bench compare` of language models: what peers print, what all are asked, who runs when, and what is refused."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.__main__ import main
from launch.bench import decode, decode_command, decode_peers
from launch.bench.decode import Ours, Rival, compete, even, fastest, report_facts, results, tasks
from launch.bench.decode_command import draw_picture, print_tables
from launch.bench.decode_peers import Answered, Dllama, LlamaCpp, Task, parse_dllama
from launch.compare.model import BenchDecoder, bench_decoder, exported
from launch.lab.lab import plan_lab
from solver.base.errors import HeptiError
from solver.cluster.cluster import read_cluster, write_cluster
from solver.model.named_decoders import named_decoder
from tests.kit import refusals
from tests.kit.clusters import pis
from tests.kit.complaints import complaints

REFUSED = Path(__file__).parents[1] / "refusals"
MODEL = BenchDecoder(Path("/model.h5"), named_decoder("llama-3.2-1b"), "int4")
# Of distributed-llama 8d624a7, two nodes that block, two layers of Llama-3.2-1B's size, a prompt of 64 letters.
RECORDED = """\
💿 Loading weights...
💿 Weights loaded
cnjlygojiveideispmfuugcieunninzgubiywdwwmkzyrkgyhorhitfrysrmzgja
🔷️ Eval  269 ms Sync   12 ms | Sent   528 kB Recv  8288 kB | (32 tokens)
🔷️ Eval  455 ms Sync   34 ms | Sent   511 kB Recv  8029 kB | (31 tokens)
🔶 Pred   27 ms Sync   14 ms | Sent    16 kB Recv   259 kB | <t7231>
🔶 Pred   28 ms Sync   16 ms | Sent    16 kB Recv   259 kB | ~
🔶 Pred   29 ms Sync   13 ms | Sent    16 kB Recv   259 kB | c
🔶 Pred   23 ms Sync   21 ms | Sent    16 kB Recv   259 kB | <t5171>

Evaluation
   nBatches: 32
    nTokens: 63
   tokens/s: 81.54 (12.26 ms/tok)
Prediction
    nTokens: 4
   tokens/s: 23.15 (43.20 ms/tok)
⭕ Network is closed
"""


def lab(*gflops):
    """Return a lab that is not up, of hosts with a core of 100 GFLOP/s."""
    planned = plan_lab("decode", pis(*gflops))
    return replace(planned, hosts=tuple(replace(host, core_flop_per_s=1e11) for host in planned.hosts))


def test_dllama_says_what_the_prompt_took_the_first_token_and_the_others():
    found = parse_dllama(RECORDED, 1.0)

    assert found.prompt_per_s == pytest.approx(81.54, rel=1e-3)
    assert found.first_s == pytest.approx(63 * 0.01226 + 0.041)
    assert found.token_s == pytest.approx((4 * 0.0432 - 0.041) / 3)
    assert found.ids == (7231, -1, 2, 5171)


def test_a_lab_at_half_scale_counts_half_the_seconds_of_dllama():
    whole, half = (parse_dllama(RECORDED, scale) for scale in (1.0, 0.5))

    assert half.token_s == pytest.approx(whole.token_s / 2)
    assert half.first_s == pytest.approx(whole.first_s / 2)
    assert half.prompt_per_s == pytest.approx(2 * whole.prompt_per_s)


def test_what_dllama_said_last_stands_in_the_error_where_it_has_no_times(kept):
    with pytest.raises(HeptiError) as caught:
        parse_dllama("💡 Arch: Llama\n💿 Loading weights...\n", 1.0)
    kept(caught.value)


def test_prompts_are_letters_that_end_with_the_first_one_and_begin_differently():
    task = tasks(MODEL.model, 64, 32, None, timed=3)

    assert [len(prompt) for prompt in task.prompts] == [64] * 4
    assert {prompt[-1] for prompt in task.prompts} == {0}
    assert len({prompt[0] for prompt in task.prompts}) == 4
    assert all(0 <= token < 26 for prompt in task.prompts for token in prompt)
    assert task.context == 96


def test_what_does_not_fit_into_the_context_is_refused_with_both_numbers(kept):
    kept(complaints(lambda sizes: tasks(MODEL.model, *sizes), [(64, 32, 95), (131000, 100, None)]))


def test_one_board_is_the_fastest_and_several_are_the_first():
    mixed = lab(24.6, 70, 24.6, 10)

    assert [host.name for host in fastest(mixed, 1)] == ["pi-1"]
    assert [host.name for host in fastest(mixed, 3)] == ["pi-0", "pi-1", "pi-2"]
    assert not even(mixed, 2)
    assert even(lab(24.6, 24.6, 24.6), 3)


@pytest.mark.slow("a model of 49 152 words in three formats")
def test_a_named_model_is_made_once_and_kept_for_all_engines(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = bench_decoder("smollm2-135m", 1, "int4")
    files = [exported(made, ending) for ending in (".m", ".gguf")]
    times = [path.stat().st_mtime_ns for path in (made.path, *files)]

    assert made.model == named_decoder("smollm2-135m", 1)
    assert bench_decoder("smollm2-135m", 1, "int4") == made
    assert [exported(made, path.suffix) for path in files] == files
    assert [path.stat().st_mtime_ns for path in (made.path, *files)] == times
    assert files[0].with_suffix(".t").exists()
    assert bench_decoder(str(made.path), None, "int4") == made
    with pytest.raises(HeptiError, match="is in int4, --precisions is int8"):
        bench_decoder(str(made.path), None, "int8")
    with pytest.raises(HeptiError, match="--layers is for named models"):
        bench_decoder(str(made.path), 2, "int4")


TASK = Task(((1, 2, 0), (3, 4, 0)), tokens=4, context=7)


@pytest.fixture
def here(monkeypatch):
    """Let programs run on this host in the place of a lab's; return the commands of the workers."""
    workers = []
    monkeypatch.setattr(decode_peers, "on_host", lambda lab, host, command: command)
    monkeypatch.setattr(decode, "on_host", lambda lab, host, command: command)

    def started(command, environment, log):
        workers.append(command)
        return SimpleNamespace(kill=lambda: workers.append("killed"), wait=lambda: None)

    monkeypatch.setattr(decode_peers.shell, "start_logged", started)
    monkeypatch.setattr(Dllama, "_listens", lambda self, host: True)
    return workers


def program(path, text):
    path.write_text(f"#!{sys.executable}\nimport json, sys\nfrom itertools import pairwise\n{text}")
    path.chmod(0o755)
    return path


@pytest.fixture
def pretended(tmp_path):
    """Return a dllama that notes what it is asked."""
    (tmp_path / "recorded").write_text(RECORDED)
    return program(
        tmp_path / "dllama",
        f"with open({str(tmp_path / 'asked')!r}, 'a') as file: print(json.dumps(sys.argv[1:]), file=file)\n"
        f"print(open({str(tmp_path / 'recorded')!r}).read())\n",
    )


def asked(folder):
    return [json.loads(line) for line in (folder / "asked").read_text().splitlines()]


@pytest.mark.parametrize(("mode", "turbo"), [("spins", "1"), ("blocks", "0")])
def test_dllama_leads_on_its_first_host_and_works_on_the_others(tmp_path, here, pretended, mode, turbo):
    hosts = lab(24.6, 24.6)

    assert Dllama(pretended, tmp_path / "m.m", hosts, hosts.hosts, mode).run(TASK, tmp_path) == [
        parse_dllama(RECORDED, 1.0)
    ]
    (words,) = asked(tmp_path)
    options = dict(pairwise(words))
    assert options["--net-turbo"] == turbo
    assert options["--prompt"] == "dea"
    assert options["--steps"] == "6"  # two of the prompt but its last, four of the answer
    assert options["--max-seq-len"] == "7"
    assert options["--tokenizer"].endswith("m.t")
    assert options["--workers"] == f"{hosts.hosts[1].address}:9990"
    worker, ended = here
    assert (options := dict(pairwise(worker)))["--host"] == hosts.hosts[1].address
    assert options["--net-turbo"] == turbo
    assert ended == "killed"


def test_dllama_on_one_board_has_nobody_to_wait_for(tmp_path, here, pretended):
    hosts = lab(24.6, 70)
    Dllama(pretended, tmp_path / "m.m", hosts, hosts.hosts[1:]).run(TASK, tmp_path)

    (words,) = asked(tmp_path)
    assert "--workers" not in words
    assert here == []


def test_what_dllama_complains_of_is_the_error(tmp_path, here):
    peer = program(tmp_path / "dllama", "print('🚨 Critical error: Cannot open model file'); sys.exit(1)")
    hosts = lab(24.6)

    with pytest.raises(HeptiError, match=r"^Cannot open model file$"):
        Dllama(peer, tmp_path / "m.m", hosts, hosts.hosts).run(TASK, tmp_path)


def test_llamacpp_answers_all_prompts_but_the_first(tmp_path, here):
    answer = {"new_tokens": [5, 6, 7], "first_s": 0.5, "token_s": 0.125}
    python = program(tmp_path / "python", f"print(json.dumps({{'version': '0.3', 'answers': [{answer!r}]}}))")
    hosts = lab(24.6)
    peer = LlamaCpp(python, tmp_path / "m.gguf", hosts, hosts.hosts[0])

    assert peer.run(TASK, tmp_path) == [Answered(0.5, 0.125, 6.0, (5, 6, 7))]
    assert peer.versions == {"llama-cpp-python": "0.3"}
    broken = program(tmp_path / "broken", "sys.exit('No module named llama_cpp')")
    with pytest.raises(HeptiError, match="No module named llama_cpp"):
        LlamaCpp(broken, tmp_path / "m.gguf", hosts, hosts.hosts[0]).run(TASK, tmp_path)


class Engine:
    """In the place of `hepti_mpi generate`: notes its options, and leaves what it would."""

    def __init__(self, monkeypatch, fails=""):
        self.options, self.ranks, self.fails = [], [], fails
        monkeypatch.setattr(decode.lab_run, "run", self.on_all)
        monkeypatch.setattr(decode.shell, "attempt", lambda command, _: (self.on_all(None, 1, command, None), "", ""))

    def on_all(self, lab, ranks, program, log):
        options = dict(pairwise(program))
        self.options.append(options)
        self.ranks.append(ranks)
        if log is not None:
            log.write_text(self.fails)
        if self.fails:
            return 2
        ids = [1, 2, 3, 4]
        requests = [
            {"id": 0, "first_s": 9.0, "tokens_per_s": 1.0, "new_tokens": ids},
            {"id": 1, "first_s": 0.5, "tokens_per_s": 8.0, "new_tokens": ids},
        ]
        report = {"requests": requests, "predicted": {"token_s": 0.11, "first_s": 0.6}}
        Path(options["--report"]).write_text(json.dumps(report))
        return 0


def ours(tmp_path, hosts, count, **facts):
    write_cluster(pis(24.6, 70, 24.6), tmp_path / "profile.toml")
    settings = {"wire": "int8", "cache": "int8", "lookup": "off", **facts}
    return Ours("hepti", MODEL, hosts, fastest(hosts, count), tmp_path / "profile.toml", **settings)


def test_our_engine_runs_on_several_boards_and_the_first_prompt_does_not_count(tmp_path, monkeypatch):
    engine = Engine(monkeypatch)
    runner = ours(tmp_path, lab(24.6, 70, 24.6), 2)

    assert runner.run(TASK, tmp_path) == [Answered(0.5, 0.125, 6.0, (1, 2, 3, 4))]
    assert runner.predicted == {"token_s": 0.11, "first_s": 0.6}
    (options,) = engine.options
    assert engine.ranks == [2]
    assert options["--cluster"] == str(tmp_path / "profile.toml")
    assert {name: options[f"--{name}"] for name in ("tokens", "context", "wire", "cache", "lookup")} == {
        "tokens": "4", "context": "7", "wire": "int8", "cache": "int8", "lookup": "off",
    }  # fmt: skip


def test_our_engine_alone_is_told_of_its_own_board_only(tmp_path, monkeypatch, here):
    engine = Engine(monkeypatch)
    ours(tmp_path, lab(24.6, 70, 24.6), 1).run(TASK, tmp_path)

    assert read_cluster(Path(engine.options[0]["--cluster"])).names == ("pi-1",)


def test_what_our_engine_complains_of_is_the_error(tmp_path, monkeypatch):
    Engine(monkeypatch, fails="python -m hepti_mpi: no memory for 7 tokens\n")

    with pytest.raises(HeptiError, match=r"^no memory for 7 tokens$"):
        ours(tmp_path, lab(24.6, 70, 24.6), 2).run(TASK, tmp_path)


class Pretender:
    """Takes in every round what is said, or fails."""

    def __init__(self, name, calls, *token_s, ids=(1, 2, 3)):
        self.name, self.calls, self.token_s, self.ids = name, calls, list(token_s), ids

    def run(self, task, files):
        self.calls.append(self.name)
        token_s = self.token_s.pop(0)
        if token_s is None:
            raise HeptiError("it broke its memory cap")
        return [Answered(10 * token_s, token_s, 6.4 / token_s, self.ids)]


def contest(tmp_path, hosts, *rivals):
    """Run all rounds that the first has; return rows, who is absent, and how many rows each round left."""
    absent, kept, said = [], [], []
    rounds = len(rivals[0].runner.token_s)
    compete(hosts, list(rivals), absent, TASK, rounds, tmp_path, said.append, lambda rows, turn: kept.append(rows))
    return kept[-1], absent, [len(rows) for rows in kept]


def test_all_run_in_every_round_and_ratios_are_within_rounds(tmp_path):
    calls = []
    rows, absent, _ = contest(
        tmp_path, lab(24.6, 24.6, 24.6, 24.6),
        Rival("hepti", 4, Pretender("a", calls, 0.1, 0.2, 0.1)),
        Rival("dllama", 4, Pretender("b", calls, 0.2, 0.5, 0.3, ids=(1, 2, 9))),
        Rival("dllama", 1, Pretender("c", calls, 0.4, 0.8, 0.8)),
    )  # fmt: skip

    assert calls == [*"abc", *"cba", *"abc"]
    assert not absent
    mine, peer, alone = rows
    assert mine["median_s"] == 0.1
    assert mine["ratio"] == [1, 1, 1]
    assert peer["ratio"] == pytest.approx([2.25, 2.5, 2.75])
    assert peer["prompt_ratio"] == pytest.approx([2.25, 2.5, 2.75])
    assert (peer["same_ids"], alone["same_ids"]) == (2, 3)
    # 0.2 - 0.4 / 4, 0.5 - 0.8 / 4, 0.3 - 0.8 / 4
    assert peer["overhead_s"] == pytest.approx(0.1)
    assert mine["overhead_s"] is None  # none of its kin ran on one board
    assert alone["overhead_s"] is None


def test_boards_that_are_not_even_have_no_overhead():
    rivals = [Rival("dllama", count, Pretender("a", [])) for count in (1, 2)]
    for rival in rivals:
        rival.add([Answered(1.0, 0.1, 64.0, (1,))])

    assert [row["overhead_s"] for row in results(lab(24.6, 70), rivals)] == [None, None]
    assert results(lab(24.6, 24.6), rivals)[1]["overhead_s"] == pytest.approx(0.05)


def test_who_fails_is_absent_from_then_on(tmp_path):
    calls = []
    rows, absent, left = contest(
        tmp_path, lab(24.6, 24.6),
        Rival("hepti", 2, Pretender("a", calls, 0.1, 0.1, 0.1)),
        Rival("dllama", 2, Pretender("b", calls, 0.2, None)),
    )  # fmt: skip

    assert calls == [*"ab", *"ba", "a"]
    assert [row["system"] for row in rows] == ["hepti"]
    assert absent == [
        {
            "system": "dllama",
            "backend": "dllama",
            "wire": "",
            "mode": "",
            "devices": 2,
            "why": "it broke its memory cap",
        }
    ]
    assert left == [2, 1, 1]


def test_where_nobody_comes_through_the_last_one_says_why(tmp_path, kept):
    with pytest.raises(HeptiError) as caught:
        contest(tmp_path, lab(24.6), Rival("dllama", 1, Pretender("a", [], None)))
    kept(caught.value)


@pytest.fixture
def report(tmp_path):
    """Return the report of two boards."""
    hosts = lab(24.6, 24.6)
    runner = ours(tmp_path, hosts, 2)
    runner.predicted = {"token_s": 0.125, "first_s": 2.0}
    alone = Dllama(Path("d"), Path("m"), hosts, hosts.hosts[:1])
    two = replace(alone, hosts=hosts.hosts, mode="blocks")
    rivals = [Rival("hepti", 2, runner, "int8"), Rival("dllama", 1, alone), Rival("dllama", 2, two)]
    for rival, token_s in zip(rivals, (0.1, 0.4, 0.25), strict=True):
        for slower in (1.0, 1.1):
            rival.add([Answered(token_s * slower * 10, token_s * slower, 64 / token_s / slower, (1, 2))])
    facts = report_facts(hosts, MODEL, tasks(MODEL.model, 64, 32, 128), "int8", "off", 5)
    absent = [{"system": "dllama", "wire": "", "mode": "", "devices": 3, "why": "runs on 1, 2, 4, … boards"}]
    return {**facts, "runs": 2, "results": results(hosts, rivals), "absent": absent}


def test_a_person_sees_tokens_prompts_and_ratios_in_eighty_columns(report, capsys, kept):
    print_tables(report)

    text = capsys.readouterr().out
    kept(text)
    tables = [line for line in text.splitlines() if line.startswith(("┃", "│"))]
    assert max(map(len, tables)) <= 80


def test_a_report_is_json_and_a_picture(report, tmp_path):
    assert json.loads(json.dumps(report))["results"][0]["tokens_per_s"] == pytest.approx(1 / 0.105)

    draw_picture(report, tmp_path, tmp_path)

    assert (tmp_path / "decode.png").stat().st_size > 10_000


@pytest.mark.parametrize("table", ["decode", "decode_models"])
def test_what_is_wrong_is_said_before_anything_is_measured(table, tmp_path, monkeypatch):
    monkeypatch.setattr(decode_command, "require_tools", lambda: None)
    if table == "decode":
        monkeypatch.setattr(decode_command, "bench_decoder", lambda *_: MODEL)
    (tmp_path / "dllama").touch(0o755)

    refusals.check(REFUSED / f"{table}.txt", {"python -m launch": main}, tmp_path)


def test_dllama_takes_part_on_powers_of_two_up_to_its_key_heads(kept):
    hosts = lab(*[24.6] * 6)
    few = replace(MODEL, model=named_decoder("smollm2-135m"))

    found, absent = decode_command._peers(hosts, few, {"dllama": Path("d")}, {"dllama": Path("m.m")}, (1, 2, 3, 4))

    assert [(rival.boards, rival.facts["mode"]) for rival in found] == [(1, ""), (2, "spins"), (2, "blocks")]
    assert [row["devices"] for row in absent] == [3, 4]
    kept("\n".join(row["why"] for row in absent))
