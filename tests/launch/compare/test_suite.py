"""Results of half an hour are not lost: `--out` is tried before anything runs, and files are written whole."""

from argparse import Namespace
from contextlib import contextmanager
from dataclasses import replace

import pytest

from launch.__main__ import main
from launch.bench import compare_command, offload, paper_command, shift_command
from launch.compare import suite
from solver.base.errors import HeptiError


def ran(*_, **__):
    raise AssertionError("something was started")


@contextmanager
def stage(_):
    ran()
    yield


@pytest.fixture
def bench(monkeypatch):
    """Return what runs a suite on a machine that has all tools, and none of which may be used."""
    monkeypatch.setattr(shift_command, "model_of", lambda path: path)
    for module in (offload.lab_up, shift_command, paper_command):
        monkeypatch.setattr(module, "require_tools", lambda: None)
    for module in (offload, shift_command):
        monkeypatch.setattr(module, "lab_of", stage)
    monkeypatch.setattr(compare_command, "_stage", stage)
    monkeypatch.setattr(paper_command, "bench_model", ran)
    return lambda *words: main(["bench", *map(str, words)])


@pytest.mark.parametrize("words", [("offload",), ("shift", "--model", "m.h5"), ("compare",), ("paper",)])
@pytest.mark.parametrize(("place", "complaint"), [("", "is a file: name a folder"), ("deeper", "Not a directory")])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(
    words, place, complaint, bench, tmp_path, capsys
):
    taken = tmp_path / "taken"
    taken.write_text("")

    assert bench(*words, "--out", taken / place) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--out {taken / place}" in error
    assert complaint in error


def test_a_folder_is_made_with_those_above_it_and_goes_where_nothing_came_of_it(tmp_path):
    folder = tmp_path / "a" / "b"

    with suite.folder_for(folder):
        assert list(folder.iterdir()) == []
    assert not folder.exists()
    with suite.folder_for(folder):
        (folder / "results.json").write_text("{}")

    assert [file.name for file in folder.iterdir()] == ["results.json"]


def test_an_empty_folder_of_the_persons_stays(tmp_path):
    with suite.folder_for(tmp_path):
        pass

    assert tmp_path.exists()


def test_a_full_disk_leaves_the_rounds_before(tmp_path, monkeypatch, kept):
    path = tmp_path / "results.json"
    suite.write_text(path, "two rounds")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(HeptiError) as caught:
        suite.write_text(path, "three rounds")
    monkeypatch.undo()

    kept(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    assert path.read_text() == "two rounds"


def test_the_tables_are_shown_before_the_files_are_written(bench, tmp_path, capsys):
    def full(*_):
        raise HeptiError("cannot write offload.json: No space left on device")

    told = replace(
        offload.SUITE, measure=lambda *_: {"suite": "offload"}, show=lambda report: print("the table"), write=full
    )
    with pytest.raises(HeptiError, match="No space left"):
        told.run(Namespace(out=tmp_path, json=False))

    assert capsys.readouterr().out == "the table\n"


def test_a_shift_of_no_requests_is_refused(bench, capsys, kept):
    assert bench("shift", "--model", "m.h5", "--requests", "0") == 2

    kept(capsys.readouterr().err)
