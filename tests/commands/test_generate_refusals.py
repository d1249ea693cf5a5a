"""Bad input to `generate`, and to the main job where a language model is given: one line, exit code 2, no file."""

import json
import re
import shlex
import shutil

import h5py
import pytest

from hepti_mpi.decoding import cli
from solver.base.errors import HeptiError
from solver.plan.decoder_plan import whole_on
from solver.schedule.decoders.memory import rank_memory
from tests.kit.commands import complaints, hepti, succeeded
from tests.kit.languages import POSITIONS, REFUSED, REFUSES, generate, with_files
from tests.kit.networks import write_classifier
from weights.decoders.file import DecoderFile

SAY = ("--prompt", "the cat")


@pytest.fixture
def refused(tmp_path):
    """Run a job that would write two files, and check that it refuses."""

    def check(complaint, arguments, ranks=2):
        before = sorted(tmp_path.rglob("*"))
        outputs = ("--output", tmp_path / "answers.jsonl") if "--chat" not in arguments else ()
        done = hepti(ranks, *arguments, *outputs, "--report", tmp_path / "report.json")

        assert done.returncode == 2, done.stderr
        (line,) = complaints(done)
        assert complaint in line
        assert sorted(tmp_path.rglob("*")) == before
        assert done.stdout == ""

    return check


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((*SAY, "--stop", ""), "a stop string is empty: it would end every answer before it begins"),
        ((*SAY, "--tokens", 0), "an answer of 0 tokens, must be at least 1"),
        ((*SAY, "--sequences", 0), "--sequences is 0, must be at least 1"),
        ((*SAY, "--temperature", -1), "temperature is -1.0, must be at least 0"),
        ((*SAY, "--top-p", 1.5), "top_p is 1.5, must be above 0 and at most 1"),
        ((*SAY, "--seed", -1), "seed is -1, must be at least 0"),
        ((*SAY, "--wire", "int4"), "argument --wire: invalid choice: 'int4'"),
        ((*SAY, "--cache", "int4"), "argument --cache: invalid choice: 'int4'"),
        ((*SAY, "--chat"), "--prompt and --chat both say what to answer: give one"),
        ((), "nothing is asked: give --prompt, --input or --chat"),
        (("--chat", "--sequences", 2), "--sequences 2 is for several prompts, a chat is one: leave it out"),
        (
            (*SAY, "--plan", "p.json", "--system", "single"),
            "--plan and --system single both say who has what: give one",
        ),
    ],
)
def test_options_that_say_nothing_or_too_much(options, complaint):
    with pytest.raises(HeptiError) as error:
        cli.parse(["--model", "m.h5", *map(str, options)])

    assert complaint in str(error.value)


def test_bad_usage_ends_a_job(tiny, refused):
    complaint = "unrecognized arguments: --promt: did you mean --prompt? (see python -m hepti_mpi generate --help)"
    refused(complaint, generate(tiny, "--promt"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--context", 2), "the prompt has 3 tokens, the context 2: shorten it or give a longer --context"),
        (("--context", 1000), f"--context is 1000, tiny has {POSITIONS} positions"),
        (
            ("--tokens", 9, "--context", 8),
            "--tokens is 9, the context has room for 8, the prompt's among them: ask for "
            "fewer, or give a longer --context",
        ),
        (
            ("--tokens", 1000),
            f"--tokens is 1000, the context has room for {POSITIONS}, the prompt's among them: ask for "
            f"fewer, or give a model of more than {POSITIONS}",
        ),
        (("--system", "hepty"), "unknown system 'hepty' (did you mean hepti?)"),
        (("--cluster", "mixed5"), "mixed5"),
        (("--plan", "/none.json"), "cannot read plan /none.json: No such file or directory"),
    ],
)
def test_what_does_not_fit_the_model_or_is_not_there(options, complaint, tiny, refused):
    refused(complaint, generate(tiny, *SAY, *options))


def test_a_plan_for_other_ranks(tiny, uneven, refused):
    refused("the plan is for 3 devices, the job has 2 ranks", generate(tiny, *SAY, "--plan", uneven))


def test_a_prompt_longer_than_a_plan_has_room_for(tiny, uneven, refused, tmp_path):
    (tmp_path / "long.jsonl").write_text(json.dumps({"tokens": [5] * 200}) + "\n")

    complaint = "generate: long.jsonl, line 1: the prompt has 200 tokens, the context 128: shorten it or give a longer"
    refused(complaint, generate(tiny, "--input", tmp_path / "long.jsonl", "--plan", uneven), ranks=3)


def test_a_file_of_bad_lines_alone_says_what_is_wrong_with_each(tiny, tmp_path):
    (tmp_path / "asked.jsonl").write_text('{"tokens": []}\n{"tokens": [1, 137]}\n')

    done = hepti(2, *generate(tiny, "--input", tmp_path / "asked.jsonl", "--output", tmp_path / "answers.jsonl"))

    assert done.returncode == 2
    assert ["line 1: " in complaints(done)[0], "line 2: " in complaints(done)[1]] == [True, True]
    assert len(complaints(done)) == 2
    assert not (tmp_path / "answers.jsonl").exists()


def board(folder, memory_bytes):
    """Return a cluster file of one board of so much memory."""
    path = folder / f"{memory_bytes}.toml"
    device = f'[[device]]\nname = "pi"\ngflops = 5\nmemory_gib = {memory_bytes / 2**30}\n'
    network = "[network]\nbandwidth_mbps = 940\nlatency_us = 200\n"
    path.write_text(f'format = "hepti-cluster/1"\n{device}{network}')
    return path


def test_no_memory_for_the_cache_says_how_long_it_could_be(tiny, refused, tmp_path):
    with DecoderFile(tiny.path) as file:
        model = file.model
    room = rank_memory(model, whole_on(model, ("a",), 0, context=96, precision="float32"))[0].total
    small, too_small = (generate(tiny, *SAY, "--cluster", board(tmp_path, size)) for size in (room, room // 2))

    done = hepti(1, *small)

    assert done.returncode == 2
    (line,) = complaints(done)
    said = r"tiny in float32 with a float32 cache has no room for a context of 256 tokens, it has for (\d+): "
    longest = re.search(said + r"take --context \1$", line)[1]
    assert 48 < int(longest) <= 96
    succeeded(hepti(1, *small, "--context", longest))
    refused("on one device without any context", too_small, ranks=1)


def test_a_plan_for_which_a_host_lacks_memory(tiny, uneven, refused):
    """Of ranks on one host, whose needs add up; no cluster says what it has."""
    asked = generate(tiny, *SAY, "--plan", uneven, "--sequences", 10**9)

    refused(" for 3 ranks, which has ", asked, ranks=3)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"tokens": [1, 137]}', "token 137 is out of range: tiny has 137 tokens, from 0 on"),
        ('{"tokens": [1, -1]}', "token -1 is out of range: tiny has 137 tokens, from 0 on"),
        ('{"tokens": []}', "line 2: "),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt": "a", "tokens": [1]}', "one of prompt, tokens and messages is needed, it has prompt and tokens"),
        ('{"messages": [{"role": "user"}]}', 'message 1 is not like {"role": "user", "content": "…"}'),
        ('{"messages": [{"role": "user", "content": "no"}]}', REFUSED),
    ],
)
def test_a_line_that_cannot_be_answered_is_named_and_the_others_are(line, complaint, tiny, refusing, tmp_path):
    (tmp_path / "asked.jsonl").write_text(f'{{"tokens": [5, 6]}}\n{line}\n')

    done = hepti(1, *generate(tiny, "--input", tmp_path / "asked.jsonl", "--tokens", 2, path=refusing))

    assert done.returncode == 2
    (said,) = complaints(done)
    assert said.startswith("python -m hepti_mpi generate: asked.jsonl, line 2: ")
    assert complaint in said
    assert len(json.loads(done.stdout)["new_tokens"]) == 2


@pytest.fixture(scope="module")
def refusing(tiny, tmp_path_factory):
    """Return a weights file with a template that refuses."""
    return with_files(tiny, tmp_path_factory.mktemp("refusing"), chat_template=REFUSES)


def test_a_template_that_is_none(tiny, refused, tmp_path):
    path = with_files(tiny, tmp_path, chat_template="{% if %}")

    refused("the chat template cannot be read", generate(tiny, "--chat", path=path))


def test_a_model_without_tokenizer_or_template(tiny, refused, tmp_path):
    path = with_files(tiny, tmp_path, tokenizer=None, chat_template=None)

    refused("other.h5 came without a tokenizer: give --input with lines of tokens", generate(tiny, *SAY, path=path))
    refused("other.h5 came without a tokenizer", generate(tiny, "--chat", path=path))


def test_a_model_without_template_has_no_chat(tiny, refused, tmp_path):
    path = with_files(tiny, tmp_path, chat_template=None)

    refused("other.h5 came without a chat template: give --prompt or --input", generate(tiny, "--chat", path=path))


def test_files_that_are_not_there(tiny, refused, tmp_path):
    refused(f"no weights file {tmp_path}/none.h5", generate(tiny, *SAY, path=tmp_path / "none.h5"))
    refused(f"cannot read --input {tmp_path}/none.jsonl", generate(tiny, "--input", tmp_path / "none.jsonl"))
    refused("none.txt: not a .jsonl of lines like", generate(tiny, "--input", tmp_path / "none.txt"))


def test_models_of_another_kind(tiny, converted, refused, tmp_path):
    write_classifier(tmp_path / "sees.h5")

    needed = "here a language model is needed"
    refused(f"sees.h5 is a convolutional network, {needed}", generate(tiny, *SAY, path=tmp_path / "sees.h5"))
    refused(f"bert.h5 is an encoder, {needed}", generate(tiny, *SAY, path=converted("bert").path))
    refused("model.h5 is a language model, here an encoder is needed", ("--model", tiny.path, "--random", 5))


def test_weights_cut_short(tiny, refused, tmp_path):
    path = tmp_path / "short.h5"
    content = tiny.path.read_bytes()
    path.write_bytes(content[: len(content) // 2])

    refused("short.h5", generate(tiny, *SAY, path=path))


def test_a_rank_that_finds_damage_alone_ends_all(tiny, uneven, refused, tmp_path):
    """Only the last of three ranks reads the last columns."""
    path = tmp_path / "model.h5"
    shutil.copy(tiny.path, path)
    with h5py.File(path, "r+") as file:
        file["layers/2/mlp/up/weight"][95, 1] = float("nan")

    refused("(rank 2)", generate(tiny, *SAY, "--plan", uneven, path=path), ranks=3)


def test_examples_of_the_help_are_for_options_that_there_are():
    done = succeeded(hepti(2, "generate", "--help"))

    assert done.stdout.startswith("usage: python -m hepti_mpi generate")
    examples = [line.split(" generate ")[1] for line in done.stdout.splitlines() if " generate --" in line]
    options = [shlex.split(words.removeprefix("--hostfile pis ")) for words in examples]
    models = [cli.parse(words).model for words in options]
    assert [model and model.name for model in models] == [None, *["llama.h5"] * 5]
