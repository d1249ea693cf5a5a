"""Answers of a language model to a person and to a script, on any ranks: those of transformers, as they come.

What lines of standard input can ask is asked of one job, `talking`, which runs for as long as this file's tests do.
"""

import json
import os
import re
import signal

import numpy as np
import pytest
import torch

from hepti_mpi.comm.group import world
from hepti_mpi.comm.hosts import place
from hepti_mpi.session.cli import parse_generate
from hepti_mpi.session.leader import Leader
from solver import cli as solver
from solver.cluster.cluster import write_cluster
from solver.live.turns import TOKENS
from solver.plan.plan import Wire
from tests.kit import inside
from tests.kit.answers import boards
from tests.kit.asked import from_lines, to_lines
from tests.kit.chat_templates import CHATML
from tests.kit.commands import complaints, mpirun, run, start, succeeded
from tests.kit.languages import generate, with_files
from tests.kit.long_jobs import long_job
from tests.kit.shared_ranks import jobs
from weights.file.store import LANGUAGE_MODEL

NEW = 8
TALK = [{"role": "user", "content": "why is the cat blue?"}]
ASKED = {"a": "the cat sleeps", "b": [5, 60, 7, 8, 90], 3: TALK, "d": "Once upon a time"}
WIDTH = 80
LONG = 100
DRAWN = {"temperature": 1.5, "top_p": 0.9, "max_tokens": 20}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Return a file of prompts, token ids and messages."""
    kinds = {str: "prompt", int: "tokens", dict: "messages"}
    path = tmp_path_factory.mktemp("asked") / "asked.jsonl"
    path.write_text(to_lines({"id": name, kinds[type(it[0])]: it} for name, it in ASKED.items()))
    return path


@pytest.fixture(scope="module")
def talking(tiny, uneven):
    """Give a job of three ranks that has room for two conversations, and answers as long as it is asked."""
    room = ("--sequences", 2, "--context", 200)
    with long_job(*mpirun(3, *generate(tiny, "--plan", uneven, "--input", "-", "--tokens", NEW, *room))) as job:
        yield job


def answers_by_id(lines):
    return {answer["id"]: answer for answer in from_lines(lines)}


def check(tiny, answer, asked, tokens=NEW):
    """Compare an answer with what transformers says."""
    expected = tiny.says(asked, tokens)

    assert answer["new_tokens"] == expected
    assert answer["text"] == tiny.text(expected)
    assert (answer["finish_reason"], answer["prompt_tokens"]) == ("length", len(tiny.ids(asked)))
    assert 0 < answer["first_s"] <= answer["seconds"]


# What a person sees.

# All of a stage on one board.
ALONE = {"attention": {"cut": "heads", "heads": [5]}, "mlp": {"cut": "columns", "columns": [96]}}


@pytest.fixture(scope="module")
def shown(tiny, tmp_path_factory):
    """Return what a prompt shows on two stages, which have the widest table: pieces of output, and all of stderr."""
    table = {
        "format": "hepti-plan/2", "model": {"name": "tiny"}, "context": 128,
        "stages": [
            {"devices": ["pi-kitchen"], "runs": [{"layers": [0, 2], **ALONE}]},
            {"devices": ["pi-2"], "runs": [{"layers": [2, 3], **ALONE}]},
        ],
        "head": {"cut": "words", "words": [tiny.model.config.vocab_size]},
    }  # fmt: skip
    plan = tmp_path_factory.mktemp("shown") / "plan.json"
    plan.write_text(json.dumps(table))
    job = generate(tiny, "--plan", plan, "--prompt", "the cat", "--tokens", LONG, "--lookup", "off")
    pieces = []
    with start(*mpirun(2, *job)) as process:
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            pieces.append(piece)
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    return pieces, errors


def test_a_prompt_is_continued_as_text_and_nothing_else(shown, tiny):
    assert b"".join(shown[0]).decode() == tiny.text(tiny.says("the cat", LONG)) + "\n"


def test_text_is_printed_as_it_comes(shown):
    assert len(shown[0]) > 5


def test_the_tables_fit_a_terminal_and_say_who_had_what(shown, tiny, kept):
    errors = shown[1]
    lines = errors[errors.index("who had what") :].splitlines()

    assert max(len(line.rstrip()) for line in lines) <= WIDTH
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert [row[:5] for row in rows] == [
        ["pi-kitchen", "0-1", "5", "96", "0"],
        ["pi-2", "2-2", "5", "96", str(tiny.model.config.vocab_size)],
    ]
    kept(re.sub(r"\d+\.\d\d", "N", lines[-1]))


def test_numpy_says_what_onnxruntime_says_and_what_its_prediction_is_for(tiny, tmp_path, kept):
    """A report says who computed."""
    asked = generate(tiny, "--cluster", "pi4x4", "--system", "megatron", "--prompt", "the cat", "--tokens", NEW)
    said, notes = {}, []
    for backend in ("onnxruntime", "numpy"):
        report = tmp_path / f"{backend}.json"
        done = succeeded(jobs(3, *asked, "--backend", backend, "--report", report))
        table = json.loads(report.read_text())
        assert {backend} == {table["backend"], *(entry["backend"] for entry in table["per_rank"])}
        said[backend] = done.stdout
        notes += [line for line in done.stderr.splitlines() if "is predicted is for" in line]

    assert said["numpy"] == said["onnxruntime"] == tiny.text(tiny.says("the cat", NEW)) + "\n"
    kept("\n".join(notes))


@pytest.mark.parametrize(
    "sequences", [pytest.param(1, marks=pytest.mark.thorough("one after the other, not together")), 3]
)
def test_several_prompts_are_told_apart(sequences, tiny, uneven):
    prompts = [ASKED["a"], ASKED["d"], "a small board and a little computer sleeps on the warm windowsill, 0123456789"]
    heads = [*prompts[:2], "a small board and a little computer sleeps on the warm windowsill, …"]

    job = generate(tiny, "--plan", uneven, "--prompt", *prompts, "--tokens", NEW, "--sequences", sequences)
    done = succeeded(jobs(3, *job))

    said = [tiny.text(tiny.says(prompt, NEW)) for prompt in prompts]
    wanted = [f"[{number}] {head}\n{text}\n\n" for number, (head, text) in enumerate(zip(heads, said, strict=True), 1)]
    assert done.stdout == "".join(wanted)


def test_a_chat_goes_on_and_computes_nothing_twice(tiny, tmp_path, kept):
    """Also after a line that its template refuses, which is no part of the conversation."""
    refusing = "{% if messages[-1]['content'] == 'no' %}{{ raise_exception('I will not') }}{% endif %}" + CHATML
    path = with_files(tiny, tmp_path, chat_template=refusing)
    says, report = ["why is the cat blue?", "no", "and the board?"], tmp_path / "report.json"

    done = jobs(
        2, *generate(tiny, "--chat", "--tokens", NEW, "--report", report, path=path), stdin="\n".join([*says, ""])
    )

    first = tiny.says(TALK, NEW)
    talk = [*TALK, {"role": "assistant", "content": tiny.text(first)}, {"role": "user", "content": says[2]}]
    second = tiny.says(talk, NEW)
    assert done.returncode == 2
    kept("\n".join(complaints(done)))
    assert done.stdout == f"{tiny.text(first)}\n{tiny.text(second)}\n"
    one, two = json.loads(report.read_text())["requests"]
    assert [one["new_tokens"], two["new_tokens"]] == [first, second]
    assert (one["known"], one["prompt_tokens"], two["prompt_tokens"]) == (0, len(tiny.ids(TALK)), len(tiny.ids(talk)))
    assert two["known"] >= one["prompt_tokens"]


@pytest.mark.parametrize(
    "by_mpirun", [True, pytest.param(False, marks=pytest.mark.thorough("as of an encoder: test_failures"))]
)
def test_ctrl_c_is_one_line(by_mpirun, tiny, tmp_path):
    command = mpirun(2, *generate(tiny, "--input", "-", "--output", tmp_path / "answers.jsonl", "--tokens", NEW))

    with start(*(command if by_mpirun else command[3:])) as process:
        print('{"prompt": "the cat"}', file=process.stdin, flush=True)
        check(tiny, json.loads(process.stdout.readline()), "the cat")
        process.send_signal(signal.SIGINT)
        stderr = process.communicate()[1]

    said = [line for line in stderr.splitlines() if not line.startswith(("1 rank", "2 ranks", "note:"))]
    if by_mpirun:
        assert not any("Traceback" in line or line.startswith("python -m") for line in said), said
        assert process.returncode != 0
    else:
        assert said == ["python -m hepti_mpi: interrupted"]
        assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["answers.jsonl"]
    check(tiny, json.loads((tmp_path / "answers.jsonl").read_text()), "the cat")


# What a script gets.


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(1, ()), (3, ("--sequences", 3)), (2, ("--system", "single")), (2, ("--system", "pipeedge", "--lookup", "off"))],
)
@pytest.mark.thorough("other ranks and plans than those of the report")
def test_a_file_is_answered_on_any_ranks(ranks, options, tiny, uneven, asked, tmp_path):
    plan = ("--plan", uneven) if ranks == 3 else ()

    done = succeeded(jobs(ranks, *generate(tiny, "--input", asked, "--tokens", NEW, *plan, *options)))

    for name, answer in answers_by_id(done.stdout).items():
        check(tiny, answer, ASKED[name])


def test_plans_are_tried_between_tokens_and_the_fastest_stays(tiny, tmp_path):
    write_cluster(boards(1e8, 3e7, 2e7, mbps=300, latency_s=1e-4, precision="float32"), tmp_path / "boards.toml")
    report, words = tmp_path / "report.json", ("--prompt", "the cat", "--tokens", LONG, "--lookup", "off")
    options = ("--cluster", tmp_path / "boards.toml", "--plan-by", "measure", "--report", report)

    done = succeeded(jobs(3, *generate(tiny, *words, *options)))

    told = json.loads(report.read_text())
    assert told["requests"][0]["new_tokens"] == tiny.says("the cat", LONG)
    assert [entry["cuts"] for entry in told["trials"]] == ["pi-0, pi-1 and pi-2", "pi-0 and pi-1", "pi-0 alone"]
    assert [entry["turns"] for entry in told["trials"]] == [TOKENS] * 3
    (stays,) = (entry for entry in told["trials"] if entry["stays"])
    assert stays["seconds"] == min(entry["seconds"] for entry in told["trials"])
    assert f"{stays['cuts']} stays" in done.stderr


def test_devices_are_shown_while_tokens_of_random_ones_are_made_and_the_answer_is_written(tiny, uneven, tmp_path):
    answers, options = tmp_path / "answers.jsonl", ("--plan", uneven, "--cluster", "mixed4", "--replan", "dry-run")
    words = ("--random", 5, "--tokens", NEW, "--ignore-eos", "--watch")

    done = succeeded(jobs(3, *generate(tiny, *words, *options, "--output", answers)))

    (answer,) = map(json.loads, answers.read_text().splitlines())
    tokens = np.random.default_rng(0).integers(tiny.model.config.vocab_size, size=5).tolist()
    assert (answer["id"], answer["new_tokens"]) == ("random", tiny.says(tokens, NEW))
    drawn = [line for line in done.stderr.splitlines() if line.startswith("│ pi-")]
    assert "ms for the last token" in done.stderr
    assert [line.split()[1] for line in drawn[:3]] == ["pi-0", "pi-1", "pi-2"]


@pytest.fixture(scope="module")
def filed(tiny, uneven, asked, tmp_path_factory):
    """Return the answers and the report of a file of all kinds of requests."""
    folder = tmp_path_factory.mktemp("filed")
    job = generate(tiny, "--input", asked, "--tokens", NEW, "--plan", uneven, "--cluster", "mixed4", "--lookup", "off")
    done = jobs(3, *job, "--output", folder / "answers.jsonl", "--report", folder / "report.json")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return answers_by_id((folder / "answers.jsonl").read_text()), json.loads((folder / "report.json").read_text())


def test_a_file_is_answered_as_transformers_does(filed, tiny):
    """Texts, token ids, and conversations by the model's template."""
    answers, _ = filed

    assert answers.keys() == ASKED.keys()
    for name, answer in answers.items():
        check(tiny, answer, ASKED[name])


def test_a_plan_of_the_solver_is_run(tiny, asked, tmp_path):
    path, report = tmp_path / "plan.json", tmp_path / "report.json"
    words = ("--model", tiny.path, "--cluster", "mixed4", "--without", "pi-3", "--context", 64, "--prompt", 8)
    done = inside.run(solver.main, *words, "--tokens", 8, "--out", path)
    assert done.returncode == 0, done.stderr

    done = succeeded(jobs(3, *generate(tiny, "--input", asked, "--tokens", NEW, "--plan", path, "--report", report)))

    assert list(answers_by_id(done.stdout)) == list(ASKED)
    found = json.loads(report.read_text())
    assert found["plan"]["head"] == json.loads(path.read_text())["head"]
    assert found["context"] == 64


def alone(tiny, sequences):
    """Return the table of a plan of one device."""
    return {
        "format": "hepti-plan/2", "model": {"name": "tiny"}, "devices": ["a"], "context": 128, "sequences": sequences,
        "stages": [{"runs": [{"layers": [0, 3], **ALONE}]}],
        "head": {"cut": "words", "words": [tiny.model.config.vocab_size]},
    }  # fmt: skip


def test_a_plan_says_what_one_board_alone_is_predicted_for(tiny, tmp_path):
    """Its cache, wire, sequences and context; what the command line says goes before."""
    table = {**alone(tiny, 3), "cache": "int8", "wire": "float16"}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(table))
    words = [*map(str, generate(tiny, "--plan", path, "--prompt", "the cat", "--wire", "int8"))]

    leader = Leader(parse_generate(words[1:]), world(), [place()], LANGUAGE_MODEL)
    leader.read()

    asked = leader.kind.asked
    assert (asked.cache, asked.wire, asked.sequences, asked.context) == ("int8", Wire.INT8, 3, 128)


@pytest.mark.parametrize(
    ("asked", "sequences", "much"),
    [
        (["--prompt", "the cat", "--tokens", "100"], 1, False),
        (["--prompt", *["the cat"] * 4, "--tokens", "100"], 1, True),
        (["--prompt", *["the cat"] * 4, "--tokens", "80"], 1, False),
        (["--prompt", *["the cat"] * 4, "--tokens", "100"], 4, False),
        (["--input", "-", "--tokens", "1"], 1, True),
    ],
)
def test_weights_move_onto_large_pages_where_many_tokens_may_come(tiny, tmp_path, asked, sequences, much):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(alone(tiny, sequences)))
    words = [*map(str, generate(tiny, "--plan", path, *asked))]

    leader = Leader(parse_generate(words[1:]), world(), [place()], LANGUAGE_MODEL)
    leader.read()
    leader.plan(None)

    assert leader.asks_much is much


def test_the_report_says_who_did_what(filed, uneven):
    _, found = filed

    assert (found["model"], found["precision"], found["cache"], found["wire"]) == ("tiny",) + ("float32",) * 3
    assert (found["context"], found["sequences"]) == (128, 1)
    assert [entry["id"] for entry in found["requests"]] == list(ASKED)
    assert {"new_tokens", "finish_reason", "seconds", "first_s", "tokens_per_s", "known"} < found["requests"][0].keys()
    assert min(found["tokens_per_s_median"], found["first_s_median"]) > 0
    assert min(found["predicted"]["token_s"], found["predicted"]["first_s"]) > 0
    ranks = found["per_rank"]
    assert [entry["device"] for entry in ranks] == ["a", "b", "c"]
    assert all(entry["compute_s"] > 0 and entry["sent_bytes"] > 0 for entry in ranks)
    assert [entry["cache_bytes"] for entry in ranks] == [2 * 12 * 3 * 128 * 4] * 2 + [0]
    assert found["plan"]["stages"] == json.loads(uneven.read_text())["stages"]


EVERY_REPORT = {
    "format", "model", "mpi", "backend", "precision", "wire", "repeat", "lab_scale", "requests", "requests_answered",
    "seconds_median", "predicted_seconds", "predicted_for", "requests_per_s", "predicted_requests_per_s", "best_single",
    "trials", "replans", "replans_decided", "per_rank", "plan",
}  # fmt: skip


def test_run_answers_prompts_as_generate_does_again_and_again_and_reports_as_of_other_models(tiny, uneven, tmp_path):
    """Every pass computes all of the prompt; the trace is of the last token, on every rank that has a share of it."""
    report, trace = tmp_path / "report.json", tmp_path / "trace.json"
    _, *words = generate(tiny, "--plan", uneven, "--cluster", "mixed4", "--prompt", "the cat", "--tokens", NEW)
    measuring = ("--warmup", 1, "--repeat", 2, "--report", report, "--trace", trace)

    done = succeeded(jobs(3, *words, *measuring))

    assert done.stdout == tiny.text(tiny.says("the cat", NEW)) + "\n"
    found = json.loads(report.read_text())
    assert found.keys() >= EVERY_REPORT
    (request,) = found["requests"]
    assert (len(request["seconds"]), request["known"], found["requests_answered"]) == (2, 0, 2)
    assert found["seconds_median"] == pytest.approx(sum(request["seconds"]) / 2)
    assert found["predicted_seconds"] > found["predicted"]["token_s"]
    assert all(0 < entry["compute_s"] < sum(request["seconds"]) for entry in found["per_rank"])
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in events if event["cat"] == "compute"} == {0, 1, 2}


@pytest.mark.parametrize(("option", "figure", "rank"), [("wire", "sent_bytes", 1), ("cache", "cache_bytes", 0)])
def test_a_thin_wire_or_cache_takes_a_part(option, figure, rank, filed, tiny, uneven, asked, tmp_path):
    """What the command line says goes before what a plan says."""
    path, thin = tmp_path / "report.json", (f"--{option}", "int8")
    job = generate(tiny, "--input", asked, "--tokens", NEW, "--plan", uneven, "--lookup", "off", *thin)

    succeeded(jobs(3, *job, "--report", path))

    wide, found = filed[1], json.loads(path.read_text())
    assert [len(entry["new_tokens"]) for entry in found["requests"]] == [NEW] * len(ASKED)
    assert (wide[option], found[option]) == ("float32", "int8")
    assert 2 * found["per_rank"][rank][figure] < wide["per_rank"][rank][figure]


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_ranks(talking, tiny):
    """Of one rank by the command line, of three by a line; what comes after a stop string is not said."""
    one, other = (talking.ask({"prompt": "the cat", **DRAWN, "seed": seed})["text"] for seed in (1, 2))
    stop = one[6:9]
    how = (
        "--temperature",
        DRAWN["temperature"],
        "--top-p",
        DRAWN["top_p"],
        "--seed",
        1,
        "--stop",
        "%%",
        "--stop",
        stop,
    )

    done = succeeded(jobs(1, *generate(tiny, "--prompt", "the cat", "--tokens", DRAWN["max_tokens"], *how)))

    assert done.stdout == one[: one.index(stop)] + "\n"
    assert one != other


def test_lines_of_standard_input_are_answered_one_by_one(tiny, uneven, kept):
    with long_job(*mpirun(3, *generate(tiny, "--plan", uneven, "--input", "-", "--tokens", NEW))) as job:
        for name, asked in (("x", "the cat"), ("y", "a small board"), ("x", "Once")):
            answer = job.ask({"id": name, "prompt": asked})
            assert answer["id"] == name
            check(tiny, answer, asked)
        refused = job.ask("no object")
        check(tiny, job.ask({"messages": TALK}), TALK)
        code, rest, errors = job.end()

    assert refused["id"] == 4
    kept(refused["error"])
    assert (code, rest) == (2, "")
    (line,) = [line for line in errors.splitlines() if line.startswith("python -m")]
    assert "standard input, line 4: " in line


def test_a_program_hears_every_token_and_what_the_ranks_do(talking, tiny):
    whole = tiny.says("the cat", NEW)
    before = talking.ask({"status": "first"})
    refused = talking.ask({"id": 0, "prompt": "the cat", "temperature": "hot"})
    talking.tell({"id": "a", "prompt": "the cat", "stream": True, "logprobs": 2, "said": whole[:2]})
    lines = [talking.hear() for _ in whole[2:]]
    answer = talking.hear()
    after = talking.ask({"status": 2})

    assert (before["status"], after["status"]) == ("first", 2)
    assert before["plan"]["devices"] == [rank["device"] for rank in before["ranks"]]
    assert refused["error"].startswith("temperature is")
    assert (after["requests"] - before["requests"], after["tokens"] - before["tokens"]) == (1, len(lines))
    assert all(rank["compute_s"] > 0 and rank["sent_bytes"] > 0 for rank in after["ranks"])
    check(tiny, answer, "the cat")
    assert [line["token"] for line in lines] == whole[2:]
    assert answer["text"].endswith("".join(line["text"] for line in lines))
    assert all(line["top"][0] == [line["token"], line["logprob"]] and len(line["top"]) == 2 for line in lines)


def test_an_answer_in_json_is_the_likeliest_value_of_its_schema(talking, tiny, kept):
    """Among these: numbers, since the model has no brackets."""
    values = [*map(str, (3, 45, 4578, 912, 60))]
    prompt = tiny.ids("the cat")

    def allowed(_, ids):
        said = tiny.text(ids[len(prompt) :])
        pieces = enumerate(map(tiny.text, ([token] for token in range(tiny.model.config.vocab_size))))
        longer = [token for token, piece in pieces if piece and any(it.startswith(said + piece) for it in values)]
        return longer + [1, 3] * (said in values)

    asked = torch.tensor([prompt])
    ids = tiny.model.generate(
        asked, attention_mask=torch.ones_like(asked), max_new_tokens=NEW, do_sample=False, pad_token_id=0,
        prefix_allowed_tokens_fn=allowed,
    )[0, len(prompt) :].tolist()  # fmt: skip
    schema = {"enum": [*map(int, values)]}
    answer = talking.ask({"id": 1, "prompt": "the cat", "schema": schema})
    rest = talking.ask({"id": 2, "prompt": "the cat", "schema": schema, "said": ids[:1]})
    refusal = talking.ask({"id": 3, "prompt": "the cat", "schema": {"type": "object"}})
    check(tiny, talking.ask({"prompt": "the cat"}), "the cat")

    assert (answer["text"], answer["finish_reason"]) == (tiny.text(ids), "stop")
    assert answer["text"] in values
    assert rest["new_tokens"] == answer["new_tokens"]
    kept(refusal["error"])


def test_what_is_cancelled_ends_and_the_others_are_answered(talking):
    usual = {"prompt": "a", "max_tokens": 150, "ignore_eos": True}
    # Drawn tokens are never found by looking back, and twenty likeliest ones take longer to say than to compute.
    slowly = {"stream": True, "logprobs": 20, "temperature": 5}
    talking.tell({"id": "long", **usual, **slowly}, {"id": "other", **usual})
    talking.tell({"id": "waits", "prompt": "the cat"})
    assert talking.hear()["id"] == "long"
    talking.tell(*({"cancel": name} for name in ("long", "waits", "nobody")))
    ended = {}
    while len(ended) < 3:
        line = talking.hear()
        if "token" not in line:
            ended[line["id"]] = line

    assert ended["long"]["finish_reason"] == "cancelled"
    assert 0 < len(ended["long"]["new_tokens"]) < 150
    assert (ended["waits"]["finish_reason"], ended["waits"].get("new_tokens", [])) == ("cancelled", [])
    assert len(ended["other"]["new_tokens"]) == 150


def test_an_answer_does_not_wait_for_the_next_line(talking, tiny):
    """There is room for two, and one asks; then more ask than there is room for."""
    check(tiny, talking.ask({"prompt": "the cat"}), "the cat")
    check(tiny, talking.ask({"prompt": "a small board"}), "a small board")

    texts = ("Once", "the", "cat", "board")
    for name, answer in talking.answers(*({"id": text, "prompt": text} for text in texts)).items():
        check(tiny, answer, name)


def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(talking, tiny):
    text = tiny.text(tiny.says("the cat", 40))
    stop = text[12:15]

    answer = talking.ask({"prompt": "the cat", "max_tokens": 40, "stop": ["%%", stop]})

    assert (answer["text"], answer["finish_reason"]) == (text[: text.index(stop)], "stop")


def test_a_last_token_ends_an_answer_unless_it_is_ignored(tiny, tmp_path):
    said = tiny.says("the cat", 20)
    last = next(token for token in said[3:] if token > 3)
    path = with_files(tiny, tmp_path, generation_config={"eos_token_id": [1, last]})
    (tmp_path / "asked.jsonl").write_text(to_lines({"prompt": "the cat", "ignore_eos": it} for it in (False, True)))

    done = succeeded(jobs(2, *generate(tiny, "--input", tmp_path / "asked.jsonl", "--tokens", 20, path=path)))

    ended, ignored = from_lines(done.stdout)
    assert (ended["new_tokens"], ended["finish_reason"]) == (said[: said.index(last) + 1], "stop")
    assert (ignored["new_tokens"], ignored["finish_reason"]) == (said, "length")


def test_a_rank_without_the_file_gets_its_share_from_rank_0(tiny, uneven, asked):
    command = mpirun(3, *generate(tiny, "--input", asked, "--tokens", NEW, "--plan", uneven))
    place = command.index("hepti_mpi")

    done = succeeded(run(*command[:place], "tests.commands.odd_rank", "no-file", *command[place + 1 :]))

    for name, answer in answers_by_id(done.stdout).items():
        check(tiny, answer, ASKED[name])
