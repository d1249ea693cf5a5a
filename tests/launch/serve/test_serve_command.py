"""`python -m launch serve` as a process: what it prints, how it ends, and that nothing of it is left."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from launch.__main__ import main
from launch.lab.lab import plan_lab
from launch.serve import command
from launch.serve.supervisor import service_name
from tests.kit import fake_boards as fakes
from tests.kit import inside, refusals
from tests.kit.networks import write_classifier

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@contextmanager
def served(model, folder, port, *words, **variables):
    """Start the service on fake boards; the block begins when it is ready."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "FAKE_UNPLUGGED": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HERE / "fake_serve.py"), "serve", "--model", str(model), "--cluster", "mixed4"]
    process = subprocess.Popen(
        [*command, "--port", str(port), *words], cwd=ROOT, env={**environment, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        first, second = process.stdout.readline(), process.stdout.readline()
        assert first == f"listening on http://127.0.0.1:{port}; loading {model.stem}\n", process.stderr.read()
        assert second == "ready\n", process.stderr.read()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def port():
    """Return a port that is free; nothing is left of services there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield port
    fakes.cleared(service_name(port))


def gone(port, seconds):
    """Wait until nothing is left of a service; return whether that is so."""
    end = time.monotonic() + seconds
    while fakes.marked(service_name(port)) and time.monotonic() < end:
        time.sleep(0.05)
    return not fakes.marked(service_name(port))


def health(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough("as SIGTERM")), signal.SIGTERM]
)
def test_a_signal_ends_it_in_one_line_and_leaves_no_rank(tiny, tmp_path, port, number):
    with served(tiny.path, tmp_path, port) as process:
        health(port)
        assert fakes.marked(service_name(port))
        watching = urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=20)
        assert watching.readline()
        process.send_signal(number)
        assert b'"ending": true' in watching.read()
        out, err = process.communicate(timeout=15)

        assert (process.returncode, out) == (128 + number, "")
        assert err.splitlines() == [f"{tiny.path.stem} runs on pi-0, pi-1, pi-2", "python -m launch: interrupted"]
        assert not fakes.marked(service_name(port))
        assert not list(Path("/dev/shm").glob(f"hepti-*{service_name(port)}-*"))


@pytest.mark.parametrize(
    "mpirun", [pytest.param("that ends its ranks", marks=pytest.mark.thorough("the easier case")), "that hangs"]
)
def test_when_it_is_killed_its_ranks_end_and_it_starts_again_at_once(tiny, tmp_path, port, mpirun):
    deaf = {"FAKE_MPIRUN_HANGS": "1"} if mpirun == "that hangs" else {}
    with served(tiny.path, tmp_path, port, **deaf) as process:
        old = set(fakes.marked(service_name(port)))
        process.kill()
        process.wait()
        assert list(Path("/dev/shm").glob(f"hepti-*-{process.pid}-*"))
        with served(tiny.path, tmp_path, port) as again:
            health(port)
            assert not list(Path("/dev/shm").glob(f"hepti-*-{process.pid}-*"))
            while old & set(fakes.marked(service_name(port))):  # what is left of the old one may live for two seconds
                time.sleep(0.05)
            again.send_signal(signal.SIGINT)
            _, err = again.communicate(timeout=15)

            assert err.splitlines() == [f"{tiny.path.stem} runs on pi-0, pi-1, pi-2", "python -m launch: interrupted"]
    assert gone(port, 10.0)


def test_when_it_is_killed_nothing_is_left(tiny, tmp_path, port):
    with served(tiny.path, tmp_path, port, FAKE_MPIRUN_HANGS="1") as process:
        process.kill()
        process.wait()

        assert gone(port, 10.0)


def test_it_is_watched_from_another_terminal(tiny, tmp_path, port):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1"}  # what is seen comes at once
    command = [sys.executable, "-m", "launch", "serve", "--watch", "--port", str(port)]
    with served(tiny.path, tmp_path, port) as process:
        with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE) as watching:
            seen = iter(watching.stdout.readline, "")
            assert any("3 of 3 boards alive" in line for line in seen)
            process.send_signal(signal.SIGINT)
            *_, last = seen

        assert watching.returncode == 0
        assert last.endswith("the service has ended\n")


def test_where_there_is_no_service_it_is_said_in_one_line(port):
    done = inside.run(main, "serve", "--watch", "--port", port)

    assert done.returncode == 2
    assert f"no service at http://127.0.0.1:{port}: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_refused_and_who_has_it_goes_on(tiny, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = inside.run(main, "serve", "--model", tiny.path, "--port", port)

    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in done.stderr


def test_mistakes_are_one_line(tiny, tmp_path):
    (tmp_path / "tiny.h5").symlink_to(tiny.path)
    write_classifier(tmp_path / "sees.h5")
    (tmp_path / "pis").write_text("pi-0 slots=2\n")

    refusals.check(ROOT / "tests/launch/refusals/serve.txt", {"python -m launch": main}, tmp_path)


def test_what_is_not_installed_is_named(tiny, monkeypatch, kept):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = inside.run(main, "serve", "--model", tiny.path)

    assert done.returncode == 2
    assert "needs uvicorn, which is not installed: pip" in done.stderr


def test_a_lab_that_is_up_is_said_to_be_left_so(monkeypatch, capsys, kept):
    """One that a killed service has brought up is nobody's."""
    up = plan_lab("mine", fakes.fake_cluster(["pi-0", "pi-1"]), ssh=True)
    monkeypatch.setattr(command, "require_tools", lambda: None)
    monkeypatch.setattr(command, "running", lambda: ["mine"])
    monkeypatch.setattr(command, "load_lab", lambda name: up)

    with command._lab("mine.toml") as lab:
        assert lab == up
    kept(capsys.readouterr().err)


def test_a_service_whose_only_model_is_refused_ends_in_one_line(tiny, tmp_path, port):
    model = tmp_path / "refused.h5"
    model.symlink_to(tiny.path)
    with pytest.raises(AssertionError) as ended, served(model, tmp_path, port):
        pass

    assert str(ended.value).startswith("python -m launch serve: refused: ")


def test_a_unit_that_could_not_start_is_not_printed(tiny, tmp_path, monkeypatch, kept):
    for words in (["--hostfile", tmp_path / "none"], ["--host", "0.0.0.0"], ["--key-file", tmp_path]):
        done = inside.run(main, "serve", "--model", tiny.path, *words, "--print-unit")
        assert (done.returncode, done.stdout) == (2, ""), words
        assert len(done.stderr.splitlines()) == 1
    monkeypatch.setenv("HEPTI_API_KEY", "k" * 16)
    done = inside.run(main, "serve", "--model", tiny.path, "--host", "0.0.0.0", "--print-unit")

    assert done.returncode == 0
    assert "k" * 16 not in done.stdout
    kept(done.stderr)


def test_the_unit_starts_what_the_command_line_would(tiny, monkeypatch):
    monkeypatch.chdir(tiny.path.parent)
    done = inside.run(main, "serve", "--np", 3, "--model", tiny.path.name, "--port", 18000, "--print-unit")

    assert done.returncode == 0
    (start,) = [line for line in done.stdout.splitlines() if line.startswith("ExecStart=")]
    assert shlex.split(start)[-10:] == [
        "--host", "127.0.0.1", "--port", "18000", "--most-waiting", "64", "--np", "3", "--model", str(tiny.path)
    ]  # fmt: skip


def test_events_are_told_also_when_the_clock_goes_back(capsys):
    """What follows what goes by their numbers."""

    class Told:
        changed = asyncio.Condition()
        entries: ClassVar = [{"number": 1, "at": 9000.0, "text": "pi-1 is silent"}]

        def state(self):
            return {"events": self.entries, "models": [{"state": "loading"}]}

    async def scenario():
        told = Told()
        telling = asyncio.create_task(command._tell(told))
        await asyncio.sleep(0)
        told.entries.append({"number": 2, "at": 5400.0, "text": "pi-1 is back"})
        async with told.changed:
            told.changed.notify_all()
        await asyncio.sleep(0.05)
        telling.cancel()

    asyncio.run(scenario())

    assert capsys.readouterr().err == "pi-1 is silent\npi-1 is back\n"


def test_without_mpirun_one_line_says_how_to_get_it(tiny, tmp_path, monkeypatch, kept):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)  # where no virtual environment has it

    done = inside.run(main, "serve", "--np", 1, "--model", tiny.path)

    assert done.returncode == 2
    assert "not on the PATH: pip install" in done.stderr
