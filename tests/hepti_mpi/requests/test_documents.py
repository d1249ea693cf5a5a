"""Documents that are ranked: of files, folders and standard input; and what of a ranking's command line is refused."""

import pytest

from hepti_mpi.requests import inputs
from hepti_mpi.requests.inputs import Reader, read_documents
from hepti_mpi.session import cli
from solver.base.errors import HeptiError
from solver.model.spec import TextInput, encoder

WORDS = ["--model", "m.h5", "--query", "what?"]


def test_a_file_is_one_document_and_a_jsonl_many(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "deep" / "b.txt").write_text("three")
    (tmp_path / "c.jsonl").write_text('{"id": "x", "text": "four"}\n{"text": "five"}\n')
    files = [tmp_path / "a.txt", tmp_path / "deep", tmp_path / "c.jsonl"]

    assert [*read_documents(files)] == [
        (str(files[0]), "one\ntwo"), (str(files[1] / "b.txt"), "three"), ("x", "four"), ("2", "five"),
    ]  # fmt: skip


def test_lines_of_standard_input_are_numbered_and_empty_ones_are_none(monkeypatch):
    monkeypatch.setattr(inputs, "read_lines", lambda: [b"one\r\n", b"", "zwölf".encode()])

    assert [*read_documents([])] == [("1", "one"), ("3", "zwölf")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": 7}', "line 1: not like"), (b"{", "line 1: not JSON"),
        (b'{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}', "1 stands twice"),
    ],
)  # fmt: skip
def test_a_document_that_is_none_is_named(tmp_path, content, words):
    (tmp_path / "a.jsonl").write_bytes(content)

    with pytest.raises(HeptiError, match=words):
        [*read_documents([tmp_path / "a.jsonl"])]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(HeptiError, match=r"a\.txt: cannot read it"):
        [*read_documents([tmp_path / "a.txt"])]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((*WORDS[:3], " "), "--query is empty"), ((*WORDS, "--top", "0"), "--top is 0"),
        ((*WORDS, "--output", "x.npz"), "written as .jsonl"),
    ],
)  # fmt: skip
def test_a_ranking_s_command_line_is_checked(words, complaint):
    with pytest.raises(HeptiError, match=complaint):
        cli.parse_rerank([*words])


@pytest.mark.parametrize(("labels", "words"), [((), "gives no scores"), (("a", "b"), "names 2 classes")])
def test_models_without_a_score_of_pairs_rank_nothing(labels, words):
    spec = encoder("it", 8, 8, 2, 1, TextInput(9, 9, 9), labels=labels, pair_scores="sigmoid")

    with pytest.raises(HeptiError, match=words):
        Reader(spec, None, print).ranked("what?", [("1", "that")])
