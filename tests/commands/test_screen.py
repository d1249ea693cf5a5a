"""What a person reads beside the answers: how many there are and where, and what was cut."""

import json
import os
import sys

import pytest

from tests.kit.commands import run, succeeded
from tests.kit.shared_ranks import jobs


@pytest.mark.parametrize("ending", ["jsonl", "npz"])
def test_answers_that_go_to_a_file_are_counted(ending, converted, tmp_path):
    asked, path = tmp_path / "asked.jsonl", tmp_path / f"answers.{ending}"
    asked.write_text('{"tokens": [5, 6]}\n{"tokens": [7]}\n')

    done = succeeded(jobs(2, "--model", converted("bert").path, "--input", asked, "--output", path, "--repeat", 2))

    assert f"wrote 2 answers to {path}\n" in done.stderr


def test_a_classifier_says_its_labels_by_name_and_score(converted, tmp_path):
    checkpoint, path = converted("bert-classifier"), tmp_path / "answers.jsonl"
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"tokens": [5, 6, 7]}\n')

    succeeded(jobs(1, "--model", checkpoint.path, "--input", asked, "--output", path))

    entry = json.loads(path.read_text())
    scores = [one["score"] for one in entry["top5"]]
    assert scores == sorted(scores, reverse=True) == sorted(entry["scores"], reverse=True)[:5]
    assert (entry["label"], entry["score"]) == (entry["top5"][0]["label"], scores[0])


@pytest.mark.slow("two commands measure and answer on a pretended terminal")
def test_an_answer_that_would_have_gone_on_is_said_to_be_cut(tiny, tmp_path):
    path = tmp_path / "answers.jsonl"
    words = ("generate", "--model", tiny.path, "--prompt", "hello", "--tokens", 3)

    done = succeeded(jobs(2, *words, "--output", path))
    whole = succeeded(jobs(1, *words, "--ignore-eos"))

    cut = json.loads(path.read_text())["finish_reason"] == "length"
    assert ("[cut at 3 tokens]" in done.stderr) is cut
    assert "[cut at" not in whole.stderr
    assert f"wrote 1 answer to {path}\n" in done.stderr


def test_of_a_file_of_prompts_those_are_said_whose_answers_were_cut(tiny, tmp_path):
    """By the ids that they have in the answers, whether these go to a file or to the screen."""
    asked, path = tmp_path / "asked.jsonl", tmp_path / "answers.jsonl"
    asked.write_text('{"tokens": [5, 6]}\n{"id": "b", "tokens": [7], "max_tokens": 2}\n{"tokens": [8]}\n')
    words = ("generate", "--model", tiny.path, "--input", asked, "--tokens", 3)

    filed = succeeded(jobs(2, *words, "--output", path))
    shown = succeeded(jobs(1, *words))
    whole = succeeded(jobs(1, *words, "--ignore-eos"))

    entries = [json.loads(line) for line in path.read_text().splitlines()]
    cut = [entry for entry in entries if entry["finish_reason"] == "length"]
    assert cut
    for tokens in (2, 3):
        ids = [str(entry["id"]) for entry in cut if len(entry["new_tokens"]) == tokens]
        line = f"[{len(ids)} answer{'s' * (len(ids) > 1)} cut at {tokens} tokens: {', '.join(ids)}]"
        assert [line in done.stderr for done in (filed, shown)] == [bool(ids)] * 2
    assert "cut at" not in whole.stderr
    assert [json.loads(line)["id"] for line in shown.stdout.splitlines()] == [entry["id"] for entry in entries]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program a /dev/shm of its own")
def test_a_rank_alone_leaves_nothing_in_shared_memory():
    look = f"mount -t tmpfs tmpfs /dev/shm && {sys.executable} -m hepti_mpi --text word && ls /dev/shm >&2"

    done = succeeded(run("unshare", "--mount", "sh", "-c", look))

    assert "sm_segment" not in done.stderr


def test_an_mpirun_that_a_rank_alone_starts_has_ranks_that_reach_each_other():
    job = ["mpirun", "-np", "2", sys.executable, "-m", "hepti_mpi", "--text", "word"]
    alone = f"import subprocess; from hepti_mpi.comm.mpi import start; start(); subprocess.run({job}, check=True)"

    done = succeeded(run(sys.executable, "-c", alone))

    assert "2 ranks on 1 host" in done.stderr
