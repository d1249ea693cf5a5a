"""What can be asked, and how the answers come, as the contract has it."""

import base64
import json

import numpy as np
import pytest
from PIL import Image

from tests.kit.asked import check_answer, check_answers, check_hidden, from_lines, to_lines
from tests.kit.checkpoints import TEXT, random_request, token_ids
from tests.kit.commands import complaints, hepti, mpirun, solver, start, succeeded, weights

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
        {"id": "first", "text": TEXTS[0]}, {"id": "wrong", "text": ""}, '{"no JSON', {"id": "last", "text": TEXTS[3]},
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


def test_plain_lines_of_standard_input_are_texts_beside_json(sentence):
    """What begins with { is JSON, and what is wrong with it an error; all else is a text as it is."""
    lines = [TEXTS[1], '["a"]', '{"id": "b", "text": "a"}', " ", "\ufeff" + '{"id": "bom", "text": "a"}', "null"]

    done = hepti(2, "--model", sentence.path, "--input", "-", stdin="\n".join(lines))

    answers = {answer["id"]: answer for answer in from_lines(done.stdout)}
    for name, text in ((1, TEXTS[1]), (2, '["a"]'), ("b", "a"), ("bom", "a"), (6, "null")):
        check_answer(answers[name], expected_of(sentence, text))
    assert answers[4]["error"] == "the line is empty"
    assert done.returncode == 2


def test_every_text_file_of_a_folder_is_a_text(sentence, tmp_path):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    for name, content in (("b.txt", "a\r\nthe small board\n"), ("deep/a.txt", TEXTS[0]), ("no.md", "no text")):
        (folder / name).write_bytes(content.encode())
    (folder / "empty.txt").write_text("\n")
    (folder / "latin.txt").write_bytes(b"\xff\xfe")

    job = ("--model", sentence.path, "--input", folder, "--output", tmp_path / "answers.jsonl")
    done = hepti(2, *job)

    expected = {"b.txt": expected_of(sentence, "a\r\nthe small board"), "deep/a.txt": expected_of(sentence, TEXTS[0])}
    check_answers((tmp_path / "answers.jsonl").read_text(), expected)
    assert done.returncode == 2
    assert "empty.txt: the text is empty" in done.stderr
    assert "latin.txt: not UTF-8" in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = hepti(1, "--model", sentence.path, "--input", empty)
    assert (refused.returncode, complaints(refused)) == (
        2, [f"python -m hepti_mpi: --input {empty}: no texts (.txt) in this folder"]
    )  # fmt: skip


def test_another_program_asks_for_the_status_and_for_several_at_once(sentence):
    """The first answer says that everything is loaded; each line of standard output is one object."""
    asked = [{"id": name, "text": text} for name, text in enumerate(TEXTS)]

    with start(*mpirun(2, "--model", sentence.path, "--input", "-")) as process:
        print('{"status": "ready"}', file=process.stdin, flush=True)
        ready = json.loads(process.stdout.readline())
        print(to_lines([*asked, {"id": "bad", "tokens": [-1]}]), end="", file=process.stdin, flush=True)
        answers = {answer["id"]: answer for answer in (json.loads(process.stdout.readline()) for _ in range(5))}
        print('{"status": 2}', file=process.stdin, flush=True)
        then = json.loads(process.stdout.readline())
        rest, _ = process.communicate()

    assert (ready["status"], ready["requests"], ready["tokens"]) == ("ready", 0, 0)
    assert len(ready["plan"]["devices"]) == len(ready["ranks"]) == 2
    for name, text in enumerate(TEXTS):
        check_answer(answers[name], expected_of(sentence, text))
    assert "token -1 is out of range" in answers["bad"]["error"]
    assert (then["status"], then["requests"]) == (2, 4)
    assert then["tokens"] == sum(answers[name]["tokens"] for name in range(4))
    assert (rest, process.returncode) == ("", 2)


def test_an_image_of_megabytes_comes_in_a_line(converted, tmp_path):
    """One that is too large, or none, is one line; noise does not become smaller in a file."""
    checkpoint = converted("vit-no-pooler")
    files = []
    for number, side in enumerate((1000, 2000)):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{side}.png")
        files.append((tmp_path / f"{side}.png").read_bytes())
    lines = [
        {"id": "named", "image": "1000.png"}, {"id": "sent", "image_data": base64.b64encode(files[0]).decode()},
        {"id": "large", "image_data": base64.b64encode(files[1]).decode()}, {"id": "none", "image_data": "aGVsbG8="},
        {"id": "bad", "image_data": "*"}, {"id": "number", "image_data": 7},
    ]  # fmt: skip

    done = hepti(1, "--model", checkpoint.path, "--input", "-", "--images", tmp_path, stdin=to_lines(lines))

    answers = {answer["id"]: answer for answer in from_lines(done.stdout)}
    np.testing.assert_allclose(answers["sent"]["embedding"], answers["named"]["embedding"], rtol=0, atol=1e-6)
    assert 10 << 20 < len(files[1]) < 16 << 20
    errors = {name: answers[name]["error"] for name in ("large", "none", "bad", "number")}
    assert errors == {
        "large": f"image_data has {len(base64.b64encode(files[1])) // 4 * 3} bytes, at most {10 << 20} are read: "
        "send a smaller image",
        "none": "cannot read image_data: it is no image",
        "bad": errors["bad"],
        "number": "image_data is no string",
    }
    assert errors["bad"].startswith("image_data is no base64: ")
    assert done.returncode == 2
    assert len(complaints(done)) == 4


def test_texts_on_the_command_line_are_shown_beside_their_nearest(sentence):
    """Brackets and colons stay what they are."""
    done = succeeded(hepti(2, "--model", sentence.path, "--text", *TEXTS[:3], COLUMNS="120"))

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
