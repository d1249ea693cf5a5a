"""What a person reads beside the answers: how many there are and where, and what was cut."""

import json

import pytest

from tests.commands.cli import hepti, succeeded


@pytest.mark.parametrize("ending", ["jsonl", "npz"])
def test_answers_that_go_to_a_file_are_counted(ending, converted, tmp_path):
    asked, path = tmp_path / "asked.jsonl", tmp_path / f"answers.{ending}"
    asked.write_text('{"tokens": [5, 6]}\n{"tokens": [7]}\n')

    done = succeeded(hepti(2, "--model", converted("bert").path, "--input", asked, "--output", path, "--repeat", 2))

    assert f"wrote 2 answers to {path}\n" in done.stderr


def test_a_classifier_says_its_labels_by_name_and_score(converted, tmp_path):
    checkpoint, path = converted("bert-classifier"), tmp_path / "answers.jsonl"
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"tokens": [5, 6, 7]}\n')

    succeeded(hepti(1, "--model", checkpoint.path, "--input", asked, "--output", path))

    entry = json.loads(path.read_text())
    scores = [one["score"] for one in entry["top5"]]
    assert scores == sorted(scores, reverse=True) == sorted(entry["scores"], reverse=True)[:5]
    assert (entry["label"], entry["score"]) == (entry["top5"][0]["label"], scores[0])


def test_an_answer_that_would_have_gone_on_is_said_to_be_cut(tiny, tmp_path):
    path = tmp_path / "answers.jsonl"
    words = ("generate", "--model", tiny.path, "--prompt", "hello", "--tokens", 3)

    done = succeeded(hepti(2, *words, "--output", path))
    whole = succeeded(hepti(1, *words, "--ignore-eos"))

    cut = json.loads(path.read_text())["finish_reason"] == "length"
    assert ("[cut at 3 tokens]" in done.stderr) is cut
    assert "[cut at" not in whole.stderr
    assert f"wrote 1 answer to {path}\n" in done.stderr
