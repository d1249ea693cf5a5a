"""What other programs answer, however broken: one line that says who answered what, and no traceback."""

from types import SimpleNamespace

import pytest

from launch.__main__ import main
from launch.base import shell
from launch.base.json_output import printed, written
from launch.bench import shift as bench_shift
from launch.compare.results import Samples
from launch.doctor import ask as doctor_ask
from launch.doctor.findings import examine
from launch.start.reach import remote
from solver.base.errors import HeptiError
from tests.kit.complaints import complaint


def test_the_last_line_counts_whatever_a_library_says_before():
    assert printed('hello\n{"seconds": [1]}\n\n', "pi-1") == {"seconds": [1]}


def test_what_is_no_answer_is_shown_with_who_gave_it(kept):
    outputs = ("", "bash: oops\n", '{"seconds": [1', "[1]", 900 * "x")

    kept("\n".join(complaint(printed, output, "pi-1") for output in outputs))


def test_a_file_that_is_missing_or_cut_off_is_named(tmp_path, kept):
    path = tmp_path / "report.json"
    with pytest.raises(HeptiError) as caught:
        written(path, "hepti_mpi")
    kept(caught.value)

    path.write_text('{"replans": [')
    with pytest.raises(HeptiError) as caught:
        written(path, "hepti_mpi")
    kept(caught.value)


@pytest.fixture
def said(monkeypatch):
    """Let every host answer in these words."""

    def answer(*words):
        answers = iter(words)
        monkeypatch.setattr(doctor_ask.shell, "attempt", lambda *_, **__: (0, next(answers), ""))

    return answer


def test_a_broken_probe_is_a_finding_on_its_host(said, kept):
    said("hello\nhepti-doctor\nmpirun (Open MPI) 5.0.11\n/bin/prted\nsegmentation fault\n")

    (finding,) = examine([doctor_ask.ask("pi-1", "/venv/bin/python", "agent", "")])

    assert (finding.host, finding.check) == ("pi-1", "interpreter")
    kept(finding.problem)


def test_a_broken_look_at_the_weights_is_the_models_error(said, kept):
    said('hepti-doctor\nmpirun\nprted\n{"python": "3.11.7"}\n', '{"backend": "numpy"}\n', "what?\n")

    answer = doctor_ask.ask("pi-1", "python", "agent", "m.h5")

    assert answer.facts == {"python": "3.11.7"}
    kept(answer.model_error)


@pytest.mark.parametrize("output", ["", "Killed\n"])
def test_a_single_device_that_prints_no_seconds_is_refused(output):
    with pytest.raises(HeptiError, match=r"launch\.single answered"):
        Samples().add_alone(output)


def test_a_job_that_is_gone_has_ended_and_not_broken_a_pipe():
    def write(_):
        raise BrokenPipeError(32, "Broken pipe")

    job = SimpleNamespace(stdin=SimpleNamespace(write=write), stdout=SimpleNamespace(readline=lambda: ""))

    with pytest.raises(HeptiError, match="hepti_mpi ended before it had answered"):
        bench_shift._ask(job, 8)


def test_a_host_may_speak_another_alphabet():
    assert shell.attempt(["printf", r"Gr\374n"]) == (0, "Gr\ufffdn", "")


def test_hosts_stand_behind_the_dashes_that_end_sshs_options(monkeypatch):
    scripts = []
    monkeypatch.setattr(doctor_ask.shell, "attempt", lambda command, *_: (0, scripts.append(command[-1]) or "", ""))
    doctor_ask.ask_pairs(["pi-1", "pi-2"], "agent")

    assert remote("pi-1", "", "true")[-3:] == ["--", "pi-1", "true"]
    assert len(scripts) == 2
    assert all(" -- pi-1 true " in script and " -- pi-2 true " in script for script in scripts)


@pytest.fixture
def late(monkeypatch):
    """Let what cannot be written be found only when it is written."""
    monkeypatch.setattr("launch.doctor.command.check_path", lambda path: None)


def test_what_the_operating_system_refuses_is_one_line(tmp_path, capsys, late):
    assert main(["hostfile", "localhost", "--out", str(tmp_path)]) == 1

    assert capsys.readouterr().err == f"python -m launch hostfile: {tmp_path}: Is a directory\n"


def test_debug_shows_where_it_was_refused(tmp_path, late):
    with pytest.raises(IsADirectoryError):
        main(["--debug", "hostfile", "localhost", "--out", str(tmp_path)])


def test_a_hostfile_that_could_not_be_written_is_refused_before_any_host_is_asked(tmp_path, capsys):
    assert main(["hostfile", "host.invalid", "--out", str(tmp_path / "none" / "pis")]) == 2

    assert "there is no folder" in capsys.readouterr().err
