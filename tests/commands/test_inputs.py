"""What can be asked, and how the answers come, as the contract has it."""

import base64

import numpy as np
import pytest
from PIL import Image

from solver import cli as solver
from tests.kit import inside
from tests.kit.asked import check_answer, check_answers, check_hidden, from_lines, to_lines
from tests.kit.checkpoints import TEXT, random_request, token_ids
from tests.kit.commands import complaints, mpirun, succeeded
from tests.kit.long_jobs import long_job
from tests.kit.shared_ranks import jobs
from weights import cli as weights

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
    succeeded(jobs(3, *job))

    answers = (tmp_path / "answers.jsonl").read_text()
    check_answers(answers, {number: expected_of(sentence, text) for number, text in enumerate(TEXTS, start=1)})
    assert [answer.get("truncated", False) for answer in from_lines(answers)] == [False, False, False, True]


def test_json_lines_mix_texts_and_tokens_under_any_ids(sentence, tmp_path):
    """The file has hidden states under the same ids, whatever names they would make."""
    ids = random_request(sentence.model, sentence.family, 300).tolist()
    lines = [{"id": "../ä b", "text": TEXTS[1]}, {"tokens": ids}, {"id": "file", "tokens": [7]}, {"id": 0, "text": "a"}]
    (tmp_path / "requests.jsonl").write_text(to_lines(lines))

    job = ("--model", sentence.path, "--input", tmp_path / "requests.jsonl", "--output", tmp_path / "hidden.npz")
    succeeded(jobs(2, *job))

    expected = [expected_of(sentence, TEXTS[1]), *map(sentence.expected, (ids, [7])), expected_of(sentence, "a")]
    check_hidden(tmp_path / "hidden.npz", dict(zip(("../ä b", 2, "file", 0), expected, strict=True)))


@pytest.fixture(scope="module")
def asking(sentence):
    """Give a job of two ranks that answers lines of standard input as long as it is asked."""
    with long_job(*mpirun(2, "--model", sentence.path, "--input", "-")) as job:
        yield job


def test_standard_input_is_answered_line_by_line(sentence, tmp_path):
    """Every answer is there before the next line is written; what is wrong with one is said, and leaves the others."""
    lines = [
        {"id": "first", "text": TEXTS[0]}, {"id": "wrong", "text": ""}, '{"no JSON', {"id": "last", "text": TEXTS[3]},
    ]  # fmt: skip

    words = ("--model", sentence.path, "--input", "-", "--output", tmp_path / "answers.jsonl")
    with long_job(*mpirun(3, *words)) as job:
        answers = [job.ask(line) for line in lines]
        code, rest, errors = job.end()

    check_answer(answers[0], expected_of(sentence, TEXTS[0]))
    assert answers[1] == {"id": "wrong", "error": "the text is empty"}
    assert (answers[2]["id"], answers[2]["error"][:8]) == (3, "not JSON")
    check_answer(answers[3], expected_of(sentence, TEXTS[3]))
    assert answers[3]["truncated"]
    assert (code, rest) == (2, "")
    assert [f"standard input, line {number}: " in errors for number in (1, 2, 3, 4)] == [False, True, True, False]
    assert from_lines((tmp_path / "answers.jsonl").read_text()) == [answers[0], answers[3]]


def test_plain_lines_of_standard_input_are_texts_beside_json(asking, sentence):
    """What begins with { is JSON, and what is wrong with it an error; all else is a text as it is."""
    lines = [TEXTS[1], '["a"]', '{"id": "b", "text": "a"}', " ", "\ufeff" + '{"id": "bom", "text": "a"}', "null"]
    before = asking.told

    answers = asking.answers(*lines)

    said = {before + 1: TEXTS[1], before + 2: '["a"]', "b": "a", "bom": "a", before + 6: "null"}
    for name, text in said.items():
        check_answer(answers[name], expected_of(sentence, text))
    assert answers[before + 4]["error"] == "the line is empty"


def test_every_text_file_of_a_folder_is_a_text(sentence, tmp_path, kept):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    for name, content in (("b.txt", "a\r\nthe small board\n"), ("deep/a.txt", TEXTS[0]), ("no.md", "no text")):
        (folder / name).write_bytes(content.encode())
    (folder / "empty.txt").write_text("\n")
    (folder / "latin.txt").write_bytes(b"\xff\xfe")

    job = ("--model", sentence.path, "--input", folder, "--output", tmp_path / "answers.jsonl")
    done = jobs(2, *job)

    expected = {"b.txt": expected_of(sentence, "a\r\nthe small board"), "deep/a.txt": expected_of(sentence, TEXTS[0])}
    check_answers((tmp_path / "answers.jsonl").read_text(), expected)
    assert done.returncode == 2
    assert "empty.txt: the text is empty" in done.stderr
    assert "latin.txt: not UTF-8" in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = jobs(2, "--model", sentence.path, "--input", empty)
    (line,) = complaints(refused)
    assert refused.returncode == 2
    kept(line)


def test_another_program_asks_for_the_status_and_for_several_at_once(asking, sentence):
    """The first answer says that everything is loaded; each line of standard output is one object."""
    texts = [{"id": name, "text": text} for name, text in enumerate(TEXTS)]

    ready = asking.ask({"status": "ready"})
    answers = asking.answers(*texts, {"id": "bad", "tokens": [-1]})
    then = asking.ask({"status": 2})

    assert len(ready["plan"]["devices"]) == len(ready["ranks"]) == 2
    for name, text in enumerate(TEXTS):
        check_answer(answers[name], expected_of(sentence, text))
    assert "token -1 is out of range" in answers["bad"]["error"]
    assert (ready["status"], then["status"], then["requests"] - ready["requests"]) == ("ready", 2, 4)
    assert then["tokens"] - ready["tokens"] == sum(answers[name]["tokens"] for name in range(4))


def test_an_image_of_megabytes_comes_in_a_line(converted, tmp_path, kept):
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

    done = jobs(1, "--model", checkpoint.path, "--input", "-", "--images", tmp_path, stdin=to_lines(lines))

    answers = {answer["id"]: answer for answer in from_lines(done.stdout)}
    np.testing.assert_allclose(answers["sent"]["embedding"], answers["named"]["embedding"], rtol=0, atol=1e-6)
    assert 10 << 20 < len(files[1]) < 16 << 20
    errors = {name: answers[name]["error"] for name in ("large", "none", "bad", "number")}
    size = str(len(base64.b64encode(files[1])) // 4 * 3)
    kept("\n".join(f"{name}: {error}" for name, error in errors.items()).replace(size, "SIZE"))
    assert done.returncode == 2
    assert len(complaints(done)) == 4


def test_texts_on_the_command_line_are_shown_beside_their_nearest(sentence):
    """Brackets and colons stay what they are."""
    done = succeeded(jobs(2, "--model", sentence.path, "--text", *TEXTS[:3], COLUMNS="120"))

    assert "nearest to each other" in done.stdout
    assert done.stdout.count(TEXTS[1]) >= 2
    assert "who computed what" in done.stdout
    assert "2 ranks on 1 host" in done.stderr


def test_one_text_shows_its_embedding_and_a_classifier_its_labels(sentence, converted):
    classifier = converted("bert-classifier")

    embedding = succeeded(jobs(1, "--model", sentence.path, "--text", TEXT)).stdout
    labels = succeeded(jobs(1, "--model", classifier.path, "--text", TEXT, "a")).stdout

    expected = classifier.expected(token_ids(classifier.folder, TEXT, 512))
    assert f"{expected_of(sentence, TEXT)['embedding'][0]:.3f}" in embedding
    assert ["calm", "breeze", "storm"][np.argmax(expected["scores"])] in labels
    assert f"{expected['scores'].max():.3f}" in labels


@pytest.mark.parametrize(
    ("family", "rows"), [("bert", 33), pytest.param("vit", 25, marks=pytest.mark.thorough("pixels, not tokens"))]
)
def test_random_rows_are_the_same_at_every_run(family, rows, converted, tmp_path):
    """A way to measure without data; the result does not depend on how many ranks compute it."""
    hidden = []
    for ranks in (1, 3):
        path = tmp_path / f"{ranks}.npz"
        succeeded(jobs(ranks, "--model", converted(family).path, "--random", rows, "--output", path))
        with np.load(path) as arrays:
            hidden.append(arrays["random"])

    assert hidden[0].shape == (rows, 40)
    np.testing.assert_allclose(hidden[0], hidden[1], rtol=0, atol=1e-5)


def test_a_picture_is_an_input_of_its_own(converted, tmp_path):
    """Grey or transparent pictures are made red, green and blue first."""
    Image.new("LA", (70, 30), (200, 128)).save(tmp_path / "grey.png")
    checkpoint = converted("vit-no-pooler")
    job = ("--model", checkpoint.path, "--input", tmp_path / "grey.png", "--output", tmp_path / "hidden.npz")

    succeeded(jobs(2, *job))

    pixels = np.full((3, 32, 48), 200 / 255 * 2 - 1)
    check_hidden(tmp_path / "hidden.npz", {"grey": checkpoint.expected(pixels)})


@pytest.mark.parametrize(
    ("command", "main"), [("weights", weights.main), ("solver", solver.main)], ids=["weights", "solver"]
)
def test_help_has_an_example(command, main):
    check_help(command, inside.run(main, "--help"))


def test_help_of_a_job_has_an_example():
    check_help("hepti_mpi", jobs(2, "--help"))


def check_help(command, done):
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage:") == 1
    assert "example" in done.stdout
    assert f"python -m {command} " in done.stdout
