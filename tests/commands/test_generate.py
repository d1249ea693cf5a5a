"""Answers of a language model to a person and to a script, on any ranks: those of transformers, as they come."""

import json
import os
import re
import signal

import pytest
import torch

from tests.kit.asked import from_lines, to_lines
from tests.kit.commands import complaints, hepti, mpirun, run, solver, start, succeeded
from tests.kit.languages import REFUSED, REFUSES, generate, with_files

NEW = 8
TALK = [{"role": "user", "content": "why is the cat blue?"}]
ASKED = {"a": "the cat sleeps", "b": [5, 60, 7, 8, 90], 3: TALK, "d": "Once upon a time"}
WIDTH = 80


@pytest.fixture
def asked(tmp_path):
    """Return a file of prompts, token ids and messages."""
    kinds = {str: "prompt", int: "tokens", dict: "messages"}
    path = tmp_path / "asked.jsonl"
    path.write_text(to_lines({"id": name, kinds[type(it[0])]: it} for name, it in ASKED.items()))
    return path


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


def test_a_prompt_is_continued_as_text_and_nothing_else(tiny, uneven):
    done = succeeded(hepti(3, *generate(tiny, "--plan", uneven, "--prompt", ASKED["a"], "--tokens", NEW)))

    assert done.stdout == tiny.text(tiny.says(ASKED["a"], NEW)) + "\n"


@pytest.mark.parametrize("sequences", [1, 3])
def test_several_prompts_are_told_apart(sequences, tiny, uneven):
    prompts = [ASKED["a"], ASKED["d"], "a small board and a little computer sleeps on the warm windowsill, 0123456789"]
    shown = [*prompts[:2], "a small board and a little computer sleeps on the warm windowsill, …"]

    job = generate(tiny, "--plan", uneven, "--prompt", *prompts, "--tokens", NEW, "--sequences", sequences)
    done = succeeded(hepti(3, *job))

    said = [tiny.text(tiny.says(prompt, NEW)) for prompt in prompts]
    wanted = [f"[{number}] {head}\n{text}\n\n" for number, (head, text) in enumerate(zip(shown, said, strict=True), 1)]
    assert done.stdout == "".join(wanted)


def test_text_is_printed_as_it_comes(tiny):
    with start(*mpirun(1, *generate(tiny, "--prompt", "the cat", "--tokens", 100, "--lookup", "off"))) as process:
        pieces = []
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            pieces.append(piece)
        process.communicate()

    assert b"".join(pieces).decode() == tiny.text(tiny.says("the cat", 100)) + "\n"
    assert len(pieces) > 5


def test_the_tables_fit_a_terminal_and_say_who_had_what(tiny, tmp_path):
    """A plan of two stages has the widest one."""
    table = {
        "format": "hepti-plan/1", "kind": "decoder", "model": {"name": "tiny"}, "devices": ["pi-kitchen", "pi-2"],
        "context": 64, "words": [0, tiny.model.config.vocab_size],
        "stages": [
            {"layers": [0, 2], "heads": [5, 0], "columns": [96, 0]},
            {"layers": [2, 3], "heads": [0, 5], "columns": [0, 96]},
        ],
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(table))

    job = generate(tiny, "--plan", tmp_path / "plan.json", "--prompt", "the cat", "--tokens", NEW)
    done = succeeded(hepti(2, *job))

    lines = done.stderr[done.stderr.index("who had what") :].splitlines()
    assert max(len(line.rstrip()) for line in lines) <= WIDTH
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert [row[:5] for row in rows] == [
        ["pi-kitchen", "0-1", "5", "96", "0"],
        ["pi-2", "2-2", "5", "96", str(tiny.model.config.vocab_size)],
    ]
    assert re.fullmatch(r"1 answer, \d+\.\d\d tokens a second, the first after \d+\.\d\d s", lines[-1])


def test_a_chat_goes_on_and_computes_nothing_twice(tiny, tmp_path):
    says = ["why is the cat blue?", "and the board?"]
    report = tmp_path / "report.json"
    job = generate(tiny, "--chat", "--tokens", NEW, "--report", report)

    done = succeeded(hepti(2, *job, stdin="".join(f"{line}\n" for line in says)))

    first = tiny.says(TALK, NEW)
    talk = [*TALK, {"role": "assistant", "content": tiny.text(first)}, {"role": "user", "content": says[1]}]
    second = tiny.says(talk, NEW)
    assert done.stdout == f"{tiny.text(first)}\n{tiny.text(second)}\n"
    one, two = json.loads(report.read_text())["requests"]
    assert [one["new_tokens"], two["new_tokens"]] == [first, second]
    assert (one["known"], one["prompt_tokens"], two["prompt_tokens"]) == (0, len(tiny.ids(TALK)), len(tiny.ids(talk)))
    assert two["known"] >= one["prompt_tokens"]


def test_a_chat_that_its_template_refuses_goes_on(tiny, tmp_path):
    path = with_files(tiny, tmp_path, chat_template=REFUSES)

    done = hepti(2, *generate(tiny, "--chat", "--tokens", NEW, path=path), stdin="no\nthe cat\n")

    assert done.returncode == 2
    assert [line.partition(": ")[2] for line in complaints(done)] == [f"{REFUSED}"]
    assert done.stdout == tiny.text(tiny.says("the cat", NEW)) + "\n"


@pytest.mark.parametrize("by_mpirun", [True, False])
def test_ctrl_c_is_one_line(by_mpirun, tiny, tmp_path):
    command = mpirun(2, *generate(tiny, "--input", "-", "--output", tmp_path / "answers.jsonl", "--tokens", NEW))

    with start(*(command if by_mpirun else command[3:])) as process:
        check(tiny, ask(process, {"prompt": "the cat"}), "the cat")
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
    [
        (1, ()),
        (3, ("--plan",)),
        (3, ("--plan", "--sequences", 3)),
        (2, ("--system", "single")),
        (2, ("--system", "pipeedge", "--lookup", "off")),
    ],
)
def test_a_file_is_answered_as_transformers_does(ranks, options, tiny, uneven, asked, tmp_path):
    """Texts, token ids, and conversations by the model's template."""
    output = tmp_path / "answers.jsonl"
    options = [word for option in options for word in ((option, uneven) if option == "--plan" else (option,))]

    done = succeeded(hepti(ranks, *generate(tiny, "--input", asked, "--output", output, "--tokens", NEW, *options)))

    answers = answers_by_id(output.read_text())
    assert (done.stdout, answers.keys()) == ("", ASKED.keys())
    for name, answer in answers.items():
        check(tiny, answer, ASKED[name])


def test_a_plan_of_the_solver_is_run(tiny, asked, tmp_path):
    path, report = tmp_path / "plan.json", tmp_path / "report.json"
    succeeded(
        solver("--model", tiny.path, "--cluster", "mixed4", "--without", "pi-3", "--context", 64, "--prompt", 8,
               "--tokens", 8, "--out", path)
    )  # fmt: skip

    done = succeeded(hepti(3, *generate(tiny, "--input", asked, "--tokens", NEW, "--plan", path, "--report", report)))

    assert list(answers_by_id(done.stdout)) == list(ASKED)
    found = json.loads(report.read_text())
    assert found["plan"]["words"] == json.loads(path.read_text())["words"]
    assert found["context"] == 64


def test_the_report_says_who_did_what(tiny, uneven, asked, tmp_path):
    report = tmp_path / "report.json"
    job = generate(tiny, "--input", asked, "--tokens", NEW, "--plan", uneven, "--cluster", "mixed4", "--report", report)

    done = hepti(3, *job)

    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
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


@pytest.mark.parametrize(("option", "figure", "rank"), [("wire", "sent_bytes", 1), ("cache", "cache_bytes", 0)])
def test_a_thin_wire_or_cache_takes_a_part(option, figure, rank, tiny, uneven, asked, tmp_path):
    """What the command line says goes before what a plan says."""
    figures = []
    for thin in ((), (f"--{option}", "int8")):
        path = tmp_path / "report.json"
        job = generate(tiny, "--input", asked, "--tokens", NEW, "--plan", uneven, "--lookup", "off", *thin)
        succeeded(hepti(3, *job, "--report", path))
        found = json.loads(path.read_text())
        assert found[option] == (thin[1] if thin else "float32")
        assert [len(entry["new_tokens"]) for entry in found["requests"]] == [NEW] * len(ASKED)
        figures.append(found["per_rank"][rank][figure])

    assert 2 * figures[1] < figures[0]


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_ranks(tiny, uneven):
    def drawn(ranks, seed, *options):
        how = ("--temperature", 1.5, "--top-p", 0.9, "--seed", seed)
        return succeeded(hepti(ranks, *generate(tiny, "--prompt", "the cat", "--tokens", 20, *how, *options))).stdout

    assert drawn(1, 1) == drawn(3, 1, "--plan", uneven) != drawn(1, 2)


def tell(process, line):
    print(json.dumps(line), file=process.stdin, flush=True)


def hear(process):
    return json.loads(process.stdout.readline())


def ask(process, request):
    tell(process, request)
    return hear(process)


def test_lines_of_standard_input_are_answered_one_by_one(tiny, uneven):
    with start(*mpirun(3, *generate(tiny, "--plan", uneven, "--input", "-", "--tokens", NEW))) as process:
        for name, asked in (("x", "the cat"), ("y", "a small board"), ("x", "Once")):
            answer = ask(process, {"id": name, "prompt": asked})
            assert answer["id"] == name
            check(tiny, answer, asked)
        assert ask(process, "no object") == {"id": 4, "error": 'not an object like {"id": 1, "prompt": "…"}'}
        check(tiny, ask(process, {"messages": TALK}), TALK)
        stdout, stderr = process.communicate()

    assert (process.returncode, stdout) == (2, "")
    (line,) = [line for line in stderr.splitlines() if line.startswith("python -m")]
    assert "standard input, line 4: not an object" in line


def test_a_program_hears_every_token_and_what_the_ranks_do(tiny, uneven):
    whole = tiny.says("the cat", NEW)
    with start(*mpirun(3, *generate(tiny, "--plan", uneven, "--input", "-", "--tokens", NEW))) as process:
        status = ask(process, {"status": "first"})
        assert (status["status"], status["requests"], status["tokens"]) == ("first", 0, 0)
        assert status["plan"]["devices"] == [rank["device"] for rank in status["ranks"]]
        assert ask(process, {"id": 0, "prompt": "the cat", "temperature": "hot"})["error"].startswith("temperature is")
        tell(process, {"id": "a", "prompt": "the cat", "stream": True, "logprobs": 2, "said": whole[:2]})
        lines = [hear(process) for _ in whole[2:]]
        answer = hear(process)
        status = ask(process, {"status": 2})
        assert status["tokens"] == len(lines)
        assert all(rank["compute_s"] > 0 and rank["sent_bytes"] > 0 for rank in status["ranks"])
        process.communicate()

    check(tiny, answer, "the cat")
    assert [line["token"] for line in lines] == whole[2:]
    assert answer["text"].endswith("".join(line["text"] for line in lines))
    assert all(line["top"][0] == [line["token"], line["logprob"]] and len(line["top"]) == 2 for line in lines)


def test_an_answer_in_json_is_the_likeliest_value_of_its_schema(tiny, uneven):
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
    with start(*mpirun(3, *generate(tiny, "--plan", uneven, "--input", "-", "--tokens", NEW))) as process:
        answer = ask(process, {"id": 1, "prompt": "the cat", "schema": schema})
        rest = ask(process, {"id": 2, "prompt": "the cat", "schema": schema, "said": ids[:1]})
        refusal = ask(process, {"id": 3, "prompt": "the cat", "schema": {"type": "object"}})
        check(tiny, ask(process, {"prompt": "the cat"}), "the cat")
        process.communicate()

    assert (answer["text"], answer["finish_reason"]) == (tiny.text(ids), "stop")
    assert answer["text"] in values
    assert rest["new_tokens"] == answer["new_tokens"]
    assert refusal["error"] == "no token of the model can begin a value of the schema"


def test_what_is_cancelled_ends_and_the_others_are_answered(tiny, uneven):
    room = ("--sequences", 2, "--context", 200)
    with start(*mpirun(3, *generate(tiny, "--plan", uneven, "--input", "-", "--tokens", NEW, *room))) as process:
        for name in ("long", "other"):
            tell(process, {"id": name, "prompt": "a", "max_tokens": 150, "stream": name == "long", "ignore_eos": True})
        tell(process, {"id": "waits", "prompt": "the cat"})
        assert hear(process)["id"] == "long"
        for name in ("long", "waits", "nobody"):
            tell(process, {"cancel": name})
        ended = {}
        while len(ended) < 3:
            line = hear(process)
            if "token" not in line:
                ended[line["id"]] = line
        process.communicate()

    assert process.returncode == 0
    assert ended["long"]["finish_reason"] == "cancelled"
    assert 0 < len(ended["long"]["new_tokens"]) < 150
    assert (ended["waits"]["finish_reason"], ended["waits"].get("new_tokens", [])) == ("cancelled", [])
    assert len(ended["other"]["new_tokens"]) == 150


def test_an_answer_does_not_wait_for_the_next_line(tiny, uneven):
    """There is room for three, and one asks."""
    with start(
        *mpirun(3, *generate(tiny, "--plan", uneven, "--input", "-", "--tokens", NEW, "--sequences", 3))
    ) as process:
        check(tiny, ask(process, {"prompt": "the cat"}), "the cat")
        check(tiny, ask(process, {"prompt": "a small board"}), "a small board")
        process.communicate(to_lines({"prompt": text} for text in ("Once", "the", "cat", "board")))

    assert process.returncode == 0


def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(tiny):
    text = tiny.text(tiny.says("the cat", 40))
    stop = text[12:15]
    before = text[: text.index(stop)]

    done = succeeded(hepti(2, *generate(tiny, "--prompt", "the cat", "--tokens", 40, "--stop", "%%", "--stop", stop)))

    assert done.stdout == before + "\n"


def test_a_last_token_ends_an_answer_unless_it_is_ignored(tiny, tmp_path):
    said = tiny.says("the cat", 20)
    last = next(token for token in said[3:] if token > 3)
    path = with_files(tiny, tmp_path, generation_config={"eos_token_id": [1, last]})
    (tmp_path / "one.jsonl").write_text('{"prompt": "the cat"}\n')
    job = generate(tiny, "--input", tmp_path / "one.jsonl", "--tokens", 20, path=path)

    (ended,) = from_lines(succeeded(hepti(2, *job)).stdout)
    (ignored,) = from_lines(succeeded(hepti(2, *job, "--ignore-eos")).stdout)

    assert (ended["new_tokens"], ended["finish_reason"]) == (said[: said.index(last) + 1], "stop")
    assert (ignored["new_tokens"], ignored["finish_reason"]) == (said, "length")


def test_a_rank_without_the_file_gets_its_share_from_rank_0(tiny, uneven, asked):
    command = mpirun(3, *generate(tiny, "--input", asked, "--tokens", NEW, "--plan", uneven))
    place = command.index("hepti_mpi")

    done = succeeded(run(*command[:place], "tests.commands.odd_rank", "no-file", *command[place + 1 :]))

    for name, answer in answers_by_id(done.stdout).items():
        check(tiny, answer, ASKED[name])
