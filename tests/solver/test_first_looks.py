"""What cannot work is refused before anything is planned, in words that say what to do."""

import pytest

from solver.cli import main
from tests.kit import inside


def said(*words):
    done = inside.run(main, *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("words", [["--objective", "throughput"], ["--system", "hepti-throughput"]])
def test_a_picture_of_a_networks_plan_for_throughput_is_refused_at_once(words, tmp_path, monkeypatch):
    """Nothing is planned: the planner may not even be called."""
    monkeypatch.setattr("solver.network_cli.solve_replicas", None)
    picture = tmp_path / "plan.svg"

    assert "--plot" in said("--model", "resnet50", "--cluster", "mixed4", *words, "--plot", picture)
    assert not picture.exists()


def test_an_empty_cluster_file_is_told_what_to_write(tmp_path):
    path = tmp_path / "empty.toml"
    path.touch()

    line = said("--model", "bert-base", "--cluster", path)

    assert 'the file is empty: hepti profile measures one, or write format = "hepti-cluster/1", a [[device]]' in line


@pytest.mark.parametrize("option", ["--cluster", "--price"])
def test_a_file_that_is_no_text_is_said_to_be_without_the_words_of_codecs(option, tmp_path):
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"ab\xff")

    line = said("--model", "bert-base", *(["--cluster", "mixed4"] if option == "--price" else []), option, path)

    assert line.endswith("byte 0xff in place 2 is no text in UTF-8")
