"""What can be asked, and how the answers come, as the contract has it."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.checkpoints import TEXT, random_request, token_ids
from tests.commands.cli import hepti, mpirun, solver, start, succeeded, weights
from tests.commands.requests import check_answer, check_answers, check_hidden, from_lines, to_lines

# Of a tokenizer of letters: one of one token, one with markup and quotes, one that is cut.
TEXTS = ("a", "the [/b] small :warning: 'board'", TEXT, "at home it is warm tonight " * 60)


@pytest.fixture(scope="module")
def sentence(converted):
    """Return a sentence encoder that reads 256 of its 512 rows."""
    return converted("sentence")


def expected_of(checkpoint, text):
    return checkpoint.expected(token_ids(checkpoint.folder, text, 256))


def test_a_text_file_has_a_text_a_line(sentence, tmp_path):
    """Ids are line numbers; windows' line ends and byte order mark are no part of a text."""
    (tmp_path / "texts.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode())

    job = ("--model", sentence.path, "--input", tmp_path / "texts.txt", "--output", tmp_path / "answers.jsonl")
    succeeded(hepti(3, *job))

    answers = (tmp_path / "answers.jsonl").read_text()
    check_answers(answers, {number: expected_of(sentence, text) for number, text in enumerate(TEXTS, start=1)})
    assert [answer.get("truncated", False) for answer in from_lines(answers)] == [False, False, False, True]


def test_json_lines_mix_texts_and_tokens_under_any_ids(sentence, tmp_path):
    """The file has hidden states under the same ids, whatever names they would make."""
    ids = random_request(sentence.model, sentence.family, 300).tolist()
    lines = [{"id": "../ä b", "text": TEXTS[1]}, {"tokens": ids}, {"id": "file", "tokens": [7]}, {"id": 0, "text": "a"}]
    (tmp_path / "requests.jsonl").write_text(to_lines(lines))

    job = ("--model", sentence.path, "--input", tmp_path / "requests.jsonl", "--output", tmp_path / "hidden.npz")
    succeeded(hepti(2, *job))

    expected = [expected_of(sentence, TEXTS[1]), *map(sentence.expected, (ids, [7])), expected_of(sentence, "a")]
    check_hidden(tmp_path / "hidden.npz", dict(zip(("../ä b", 2, "file", 0), expected, strict=True)))


def test_standard_input_is_answered_line_by_line(sentence, tmp_path):
    """Every answer is there before the next line is written; what is wrong with one is said, and leaves the others."""
    lines = [
        {"id": "first", "text": TEXTS[0]}, {"id": "wrong", "text": ""}, "no JSON", {"id": "last", "text": TEXTS[3]},
    ]  # fmt: skip
    job = ("--model", sentence.path, "--input", "-", "--output", tmp_path / "answers.jsonl")
    answers = []

    with start(*mpirun(3, *job)) as process:
        for line in lines:
            print(json.dumps(line) if isinstance(line, dict) else line, file=process.stdin, flush=True)
            answers.append(json.loads(process.stdout.readline()))
        rest, stderr = process.communicate()

    check_answer(answers[0], expected_of(sentence, TEXTS[0]))
    assert answers[1] == {"id": "wrong", "error": "the text is empty"}
    assert (answers[2]["id"], answers[2]["error"][:8]) == (3, "not JSON")
    check_answer(answers[3], expected_of(sentence, TEXTS[3]))
    assert answers[3]["truncated"]
    assert rest == ""
    assert process.returncode == 2
    assert "standard input, line 2: the text is empty" in stderr
    assert "standard input, line 3: not JSON" in stderr
    assert from_lines((tmp_path / "answers.jsonl").read_text()) == [answers[0], answers[3]]


def test_texts_on_the_command_line_are_shown_beside_their_nearest(sentence):
    """Brackets and colons stay what they are."""
    done = succeeded(hepti(2, "--model", sentence.path, "--text", *TEXTS[:3]))

    assert "nearest to each other" in done.stdout
    assert done.stdout.count(TEXTS[1]) >= 2
    assert "who computed what" in done.stdout
    assert "2 ranks on 1 host" in done.stderr


def test_one_text_shows_its_embedding_and_a_classifier_its_labels(sentence, converted):
    classifier = converted("bert-classifier")

    embedding = succeeded(hepti(1, "--model", sentence.path, "--text", TEXT)).stdout
    labels = succeeded(hepti(1, "--model", classifier.path, "--text", TEXT, "a")).stdout

    expected = classifier.expected(token_ids(classifier.folder, TEXT, 512))
    assert f"{expected_of(sentence, TEXT)['embedding'][0]:.3f}" in embedding
    assert ["calm", "breeze", "storm"][np.argmax(expected["scores"])] in labels
    assert f"{expected['scores'].max():.3f}" in labels


@pytest.mark.parametrize(("family", "rows"), [("bert", 33), ("vit", 25)])
def test_random_rows_are_the_same_at_every_run(family, rows, converted, tmp_path):
    """A way to measure without data; the result does not depend on how many ranks compute it."""
    hidden = []
    for ranks in (1, 3):
        path = tmp_path / f"{ranks}.npz"
        succeeded(hepti(ranks, "--model", converted(family).path, "--random", rows, "--output", path))
        with np.load(path) as arrays:
            hidden.append(arrays["random"])

    assert hidden[0].shape == (rows, 40)
    np.testing.assert_allclose(hidden[0], hidden[1], rtol=0, atol=1e-5)


def test_a_picture_is_an_input_of_its_own(converted, tmp_path):
    """Grey or transparent pictures are made red, green and blue first."""
    Image.new("LA", (70, 30), (200, 128)).save(tmp_path / "grey.png")
    checkpoint = converted("vit-no-pooler")
    job = ("--model", checkpoint.path, "--input", tmp_path / "grey.png", "--output", tmp_path / "hidden.npz")

    succeeded(hepti(2, *job))

    pixels = np.full((3, 32, 48), 200 / 255 * 2 - 1)
    check_hidden(tmp_path / "hidden.npz", {"grey": checkpoint.expected(pixels)})


@pytest.mark.parametrize("command", ["hepti_mpi", "weights", "solver"])
def test_help_has_an_example(command):
    run = {"hepti_mpi": lambda option: hepti(2, option), "weights": weights, "solver": solver}[command]
    done = succeeded(run("--help"))

    assert done.stdout.count("usage:") == 1
    assert "example" in done.stdout
    assert f"python -m {command} " in done.stdout
    assert done.stderr == ""
