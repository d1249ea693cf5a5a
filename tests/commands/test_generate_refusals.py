"""Bad input to `generate`, and to the main job where a language model is given: one line, exit code 2, no file."""

import json
import re
import shlex
import shutil
from pathlib import Path

import h5py
import pytest

from hepti_mpi.session import cli
from solver.plan.decoder_plan import whole_on
from solver.schedule.decoders.memory import rank_memory
from tests.kit import refusals
from tests.kit.commands import complaints, hepti, succeeded
from tests.kit.languages import REFUSES, generate, with_files
from tests.kit.networks import write_classifier
from tests.kit.shared_ranks import jobs
from weights.decoders.file import DecoderFile

SAY = ("--prompt", "the cat")
TABLES = Path(__file__).parent / "refusals"


@pytest.fixture
def refused(tmp_path, kept):
    """Run a job that would write two files, and check that it refuses as it is kept; return the line."""

    def check(*arguments, ranks=2, run=jobs, keep=kept):
        before = sorted(tmp_path.rglob("*"))
        outputs = ("--output", tmp_path / "answers.jsonl") if "--chat" not in arguments else ()
        done = run(ranks, *arguments, *outputs, "--report", tmp_path / "report.json")

        assert done.returncode == 2, done.stderr
        (line,) = complaints(done)
        keep(line)
        assert sorted(tmp_path.rglob("*")) == before
        assert done.stdout == ""
        return line

    return check


def test_options_that_say_nothing_or_too_much(tmp_path):
    programs = {
        "python -m hepti_mpi generate": refusals.parsing("python -m hepti_mpi generate", cli.parse_generate),
        "python -m hepti_mpi": refusals.parsing("python -m hepti_mpi", cli.parse),
    }
    refusals.check(TABLES / "generate.txt", programs, tmp_path)


def test_bad_usage_ends_a_job(tiny, refused):
    refused(*generate(tiny, "--promt"), run=hepti)


def test_what_does_not_fit_the_model_or_is_not_there(tiny, refused):
    for options in (
        ("--context", 2), ("--context", 1000), ("--tokens", 9, "--context", 8), ("--tokens", 1000),
        ("--top-p", 0.5), ("--temperature", 0, "--seed", 3),
        ("--system", "hepty"), ("--cluster", "mixed5"), ("--plan", "/none.json"), ("--wire", "int4"),
    ):  # fmt: skip
        refused(*generate(tiny, *SAY, *options))


def test_a_plan_for_other_ranks(tiny, uneven, refused):
    refused(*generate(tiny, *SAY, "--plan", uneven))


def test_a_prompt_longer_than_a_plan_has_room_for(tiny, uneven, refused, tmp_path):
    (tmp_path / "long.jsonl").write_text(json.dumps({"tokens": [5] * 200}) + "\n")

    refused(*generate(tiny, "--input", tmp_path / "long.jsonl", "--plan", uneven), ranks=3)


def test_a_file_of_bad_lines_alone_says_what_is_wrong_with_each(tiny, tmp_path, kept):
    (tmp_path / "asked.jsonl").write_text('{"tokens": []}\n{"tokens": [1, 137]}\n')

    done = jobs(2, *generate(tiny, "--input", tmp_path / "asked.jsonl", "--output", tmp_path / "answers.jsonl"))

    assert done.returncode == 2
    assert len(complaints(done)) == 2
    kept("\n".join(complaints(done)))
    assert not (tmp_path / "answers.jsonl").exists()


def board(folder, memory_bytes):
    """Return a cluster file of one board of so much memory."""
    path = folder / f"{memory_bytes}.toml"
    device = f'[[device]]\nname = "pi"\ngflops = 5\nmemory_gib = {memory_bytes / 2**30}\n'
    network = "[network]\nbandwidth_mbps = 940\nlatency_us = 200\n"
    path.write_text(f'format = "hepti-cluster/1"\n{device}{network}')
    return path


def test_no_memory_for_the_cache_says_how_long_it_could_be(tiny, refused, tmp_path, kept):
    with DecoderFile(tiny.path) as file:
        model = file.model
    room = rank_memory(model, whole_on(model, ("a",), 0, context=96, precision="float32"))[0].total
    small, too_small = (generate(tiny, *SAY, "--cluster", board(tmp_path, size)) for size in (room, room // 2))

    line = refused(*small, ranks=1, keep=lambda line: kept(re.sub(r"\d+(?=: take|$)", "N", line)))

    longest, taken = re.search(r" (\d+): take --context (\d+)$", line).groups()
    assert longest == taken
    assert 48 < int(longest) <= 96
    succeeded(jobs(1, *small, "--context", longest))
    refused(*too_small, ranks=1)


def test_a_plan_for_which_a_host_lacks_memory(tiny, uneven, refused):
    """Of ranks on one host, whose needs add up; no cluster says what it has."""
    asked = generate(tiny, *SAY, "--plan", uneven, "--sequences", 10**9)

    line = refused(*asked, ranks=3, keep=str)

    assert " for 3 ranks, which has " in line


def test_a_line_that_cannot_be_answered_is_named_and_the_others_are(tiny, tmp_path, kept):
    lines = [
        '{"tokens": [5, 6]}', '{"tokens": [1, 137]}', '{"tokens": [1, -1]}', '{"tokens": []}', '{"prompt": ""}',
        '{"prompt": "a", "tokens": [1]}', '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": "no"}]}', '{"tokens": [7]}',
    ]  # fmt: skip
    path = with_files(tiny, tmp_path, chat_template=REFUSES)
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))

    done = jobs(1, *generate(tiny, "--input", tmp_path / "asked.jsonl", "--tokens", 2, path=path))

    assert done.returncode == 2
    said = complaints(done)
    assert len(said) == len(lines) - 2
    kept("\n".join(said))
    assert [len(json.loads(line)["new_tokens"]) for line in done.stdout.splitlines()] == [2, 2]


def test_a_template_that_is_none(tiny, refused, tmp_path):
    path = with_files(tiny, tmp_path, chat_template="{% if %}")

    refused(*generate(tiny, "--chat", path=path))


def test_a_model_without_tokenizer_or_template(tiny, refused, tmp_path):
    path = with_files(tiny, tmp_path, tokenizer=None, chat_template=None)

    refused(*generate(tiny, *SAY, path=path))
    refused(*generate(tiny, "--chat", path=path))


def test_a_model_without_template_has_no_chat(tiny, refused, tmp_path):
    path = with_files(tiny, tmp_path, chat_template=None)

    refused(*generate(tiny, "--chat", path=path))


def test_files_that_are_not_there(tiny, refused, tmp_path):
    refused(*generate(tiny, *SAY, path=tmp_path / "none.h5"))
    refused(*generate(tiny, "--input", tmp_path / "none.jsonl"))
    refused(*generate(tiny, "--input", tmp_path / "none.txt"))


def test_models_of_another_kind(tiny, converted, refused, tmp_path):
    write_classifier(tmp_path / "sees.h5")

    refused(*generate(tiny, *SAY, path=tmp_path / "sees.h5"))
    refused(*generate(tiny, *SAY, path=converted("bert").path))
    refused("--model", tiny.path, "--text", "the cat")


def test_weights_cut_short(tiny, refused, tmp_path):
    path = tmp_path / "short.h5"
    content = tiny.path.read_bytes()
    path.write_bytes(content[: len(content) // 2])

    assert "short.h5 is cut short or damaged" in refused(
        *generate(tiny, *SAY, path=path), keep=str
    )  # then HDF5's words


def test_a_rank_that_finds_damage_alone_ends_all(tiny, uneven, refused, tmp_path):
    """Only the last of three ranks reads the last columns."""
    path = tmp_path / "model.h5"
    shutil.copy(tiny.path, path)
    with h5py.File(path, "r+") as file:
        file["layers/2/mlp/up/weight"][95, 1] = float("nan")

    assert "(rank 2)" in refused(*generate(tiny, *SAY, "--plan", uneven, path=path), ranks=3)


def test_examples_of_the_help_are_for_options_that_there_are():
    done = succeeded(jobs(2, "generate", "--help"))

    assert done.stdout.startswith("usage: python -m hepti_mpi generate")
    examples = [line.split(" generate ")[1] for line in done.stdout.splitlines() if " generate --" in line]
    options = [shlex.split(words.removeprefix("--hostfile pis ")) for words in examples]
    models = [cli.parse_generate(words).model for words in options]
    assert [model and model.name for model in models] == [None, *["llama.h5"] * 5]
