"""Boards that are folders of this machine, reached by an agent in the place of ssh: nothing comes from a network."""

import asyncio
import ensurepip
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from importlib import metadata
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from launch.install.boards import looked_at
from launch.install.carry import fetch, install, look_at, wheels_folder
from launch.install.model import HELD, OTHER, PART, read_model
from launch.install.screen import BoardScreen
from launch.install.wheels import WheelSet, is_current, own_wheel, requirements, unpacked_bytes
from solver.base.errors import HeptiError
from tests.kit.commands import ENVIRONMENT, ROOT, run, start

FACTS = {
    "python": "/usr/bin/python3", "version": [3, 11, 2], "venv": True, "machine": "aarch64", "bits": 64,
    "glibc": "2.36", "user": "pi", "shared": False, "foreign": False, "folder": "/home", "writable": True,
    "free_bytes": 10**10, "installed": {}, "held": {},
}  # fmt: skip
ENV = Path("/home/pi/env")
LIBRARY = "h5py"  # in the place of which boards get a small wheel, of the version that is here


def write_wheel(folder, name, version, text):
    """Write a wheel of one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


@pytest.fixture
def agent(tmp_path):
    """Return what reaches every host: a shell of this machine."""
    path = tmp_path / "agent"
    path.write_text('#!/bin/bash\necho "$1" >> "$0.log"\nexec bash -c "$2"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """Return the folder of a light set, as pip leaves it: small wheels of the versions that are here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    python = ".".join(map(str, sys.version_info[:2]))
    glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    folder = wheels_folder(WheelSet(python, os.uname().machine, glibc, full=False))
    folder.mkdir(parents=True)
    write_wheel(folder, LIBRARY, metadata.version(LIBRARY), "here = 1\n")
    # Debian has Python's own copy of pip elsewhere.
    bundled = sysconfig.get_config_var("WHEEL_PKG_DIR") or Path(ensurepip.__file__).parent / "_bundled"
    shutil.copy(next(Path(bundled).glob("pip-*.whl")), folder)
    return folder


@pytest.fixture
def environment(tmp_path):
    """Return where boards have their environment."""
    return tmp_path / "board" / "env"


@pytest.fixture
def installed(agent, fetched, environment):
    """Install on a board, light; return what it says."""

    def go():
        async def both():
            environment.parent.mkdir(exist_ok=True)
            at_first, board = await look_at(["first", "pi-1"], agent, environment, full=False)
            assert at_first.full
            return await install([board], agent, environment, screen)

        screen = BoardScreen(["pi-1"], Console(file=StringIO()))
        (board,) = asyncio.run(both())
        return board

    return go


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    """Let the folder of a board be none of this machine's."""
    monkeypatch.setattr("launch.install.carry.seen", lambda environment: nullcontext("nobody"))


def imports(environment, module):
    """Return whether a board's Python finds a module."""
    done = subprocess.run([environment / "bin" / "python", "-I", "-c", f"import {module}"], cwd="/", check=False)
    return done.returncode == 0


@pytest.mark.slow("pip installs once")
def test_a_board_with_nothing_but_python_gets_its_environment(installed, environment):
    board = installed()

    assert (board.trouble, board.done) == ("", "installed 2 of 2 wheels")
    assert imports(environment, LIBRARY)
    assert imports(environment, "hepti_mpi.base")
    assert not imports(environment, "pip")
    assert not Path(f"{environment}.wheels").exists()
    assert 0 < board.size_bytes < 30e6


@pytest.mark.slow("pip installs three times")
def test_what_is_right_is_not_done_again_and_what_has_changed_is(installed, fetched):
    installed()

    assert installed().done == "was right already"
    write_wheel(fetched, LIBRARY, metadata.version(LIBRARY), "here = 2\n")
    assert installed().done == "installed 1 of 2 wheels"


@pytest.mark.slow("pip installs once and a half")
def test_an_installation_that_was_cut_off_goes_on(installed, fetched, environment):
    """One wheel came whole, one in part, and the environment has begun."""
    wheels = Path(f"{environment}.wheels")
    wheels.mkdir(parents=True)
    for number, path in enumerate(sorted(fetched.glob("*.whl"))):
        content = path.read_bytes()
        (wheels / path.name).write_bytes(content[: len(content) // 2] if number else content)
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()

    assert installed().done == "installed 2 of 2 wheels"
    assert imports(environment, LIBRARY)


@pytest.mark.slow("pip installs twice")
def test_an_environment_of_another_python_is_made_again(installed, environment):
    installed()
    own = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    own.rename(own.with_name("python3.9"))

    assert installed().done == "installed 2 of 2 wheels"


def test_what_goes_wrong_on_a_board_is_its_line(installed, fetched, environment):
    next(fetched.glob("pip-*")).unlink()

    assert "pip-*.whl" in installed().trouble
    assert not (environment / "hepti-wheels").exists()


def test_a_board_that_cannot_be_installed_is_told_why(kept):
    changes = (
        {"version": [3, 9, 2]}, {"bits": 32, "machine": "armv7l"}, {"glibc": ""}, {"venv": False}, {"foreign": True},
        {"writable": False},
    )  # fmt: skip
    answers = [(0, f"hello\nhepti-doctor\n{json.dumps(FACTS | change)}\n", "") for change in changes]

    troubles = [looked_at("pi-1", answer, ENV, (3, 11, 3, 11)).trouble for answer in answers]
    assert all(troubles)
    kept("\n".join(troubles))


def test_a_board_without_python_is_told_what_to_install(kept):
    board = looked_at("pi-1", (0, "hepti-doctor\n", ""), ENV, (3, 11, 3, 11))

    kept(board.trouble)


def test_a_board_that_ssh_does_not_reach_is_told_as_the_doctor_does():
    refused = "pi@pi-1: Permission denied (publickey)."

    assert looked_at("pi-1", (255, "", refused), ENV, (3, 11, 3, 11)).trouble.endswith("ssh-copy-id pi-1")


def test_the_python_of_our_release_is_taken_before_others():
    found = [FACTS | {"version": [3, minor, 0], "python": f"python3.{minor}"} for minor in (9, 13, 12, 11)]
    answer = (0, "hepti-doctor\n" + "\n".join(map(json.dumps, found)), "")

    assert looked_at("pi-1", answer, ENV, (3, 11, 3, 12)).python == "3.12.0"
    assert looked_at("pi-1", answer, ENV, (3, 11, 3, 14)).python == "3.13.0"


def test_our_wheel_is_the_same_bytes_each_time_and_whole(tmp_path):
    (tmp_path / "other").mkdir()
    one, other = own_wheel(tmp_path), own_wheel(tmp_path / "other")

    assert one.read_bytes() == other.read_bytes()
    names = set(zipfile.ZipFile(one).namelist())
    ours = {str(path.relative_to(ROOT)) for path in ROOT.glob("launch/**/*") if path.is_file()}
    assert {name for name in ours if "__pycache__" not in name} <= names
    assert {"hepti_mpi/demo/cluster.toml", "launch/install/install.sh"} < names
    assert unpacked_bytes(one) > one.stat().st_size


def test_wheels_for_a_pi_are_those_of_its_libc_and_before():
    tags = WheelSet("3.11", "aarch64", "2.36", full=False).platforms

    assert (tags[0], tags[-2:]) == ("manylinux_2_36_aarch64", ["manylinux_2_17_aarch64", "manylinux2014_aarch64"])


def test_a_light_board_gets_no_planner():
    light, full = (set(requirements(WheelSet("3.11", "aarch64", "2.36", full=full))) for full in (False, True))

    assert {"numpy", "h5py", "mpi4py", "onnxruntime"} <= light < full
    assert not light & {"cvxpy", "highspy", "pulp", "rich", "tokenizers"}


def test_wheels_of_other_versions_than_ours_are_fetched_again(fetched):
    assert is_current(fetched)
    write_wheel(fetched, "numpy", "1.0", "")
    assert not is_current(fetched)


@pytest.fixture
def pushed(tmp_path):
    """Return a weights file, to be pushed to where a board has none, and a function that runs a script there."""
    source = tmp_path / "m.h5"
    source.write_bytes(b"\x89HDF" + os.urandom(3 << 20))
    model = replace(read_model(source), path=tmp_path / "board" / "models" / "m.h5")

    def there(script, content=b""):
        environment = ENVIRONMENT | {"HOME": str(tmp_path / "board")}
        done = subprocess.run(["sh", "-c", script], input=content, env=environment, capture_output=True, check=False)
        return done.returncode, done.stdout.decode().split()

    return source, model, there


def test_a_weights_file_is_pushed_once(pushed):
    source, model, there = pushed

    assert there(model.look_script) == (0, [PART, "0"])
    assert there(model.receive_script, source.read_bytes()) == (0, [])
    assert model.path.read_bytes() == source.read_bytes()
    model.path.unlink()
    assert there(model.look_script) == (0, [HELD])
    assert model.path.read_bytes() == source.read_bytes()


def test_a_push_that_was_cut_off_goes_on_where_it_was(pushed):
    source, model, there = pushed
    there(model.receive_script.replace("&& if [", "&& exit 0; if ["), source.read_bytes()[: 1 << 20])

    word, begin = there(model.look_script)[1]
    rest = b"".join(replace(model, path=source).rest(int(begin), lambda count: None))

    assert (word, int(begin), len(rest)) == (PART, 1 << 20, model.size - (1 << 20))
    assert there(model.receive_script, rest) == (0, [])
    assert model.path.read_bytes() == source.read_bytes()


def test_what_came_damaged_is_not_kept(pushed):
    source, model, there = pushed

    assert there(model.receive_script, source.read_bytes()[:-1] + b"?")[0] == 1
    assert there(model.look_script) == (0, [PART, "0"])


def test_another_file_in_its_place_stays(pushed):
    _, model, there = pushed
    model.path.parent.mkdir(parents=True)
    model.path.write_text("mine")

    assert there(model.look_script) == (0, [OTHER])
    assert model.path.read_text() == "mine"


def test_what_is_no_weights_file_is_refused(tmp_path, kept):
    (tmp_path / "m.gguf").write_text("GGUF")

    with pytest.raises(HeptiError) as caught:
        read_model(tmp_path / "m.gguf")
    kept(caught.value)


def has_ended(pid):
    """Return whether a process has, though nobody may have taken note of it."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def test_ctrl_c_ends_it_in_one_line_and_what_it_has_started(tmp_path):
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/bash\necho $$ >> {tmp_path}/pids\nexec sleep 1000\n")
    agent.chmod(0o755)
    words = ("-m", "launch", "install", "--hosts", "pi-1,pi-2", "--agent", agent)

    with start(sys.executable, *words) as process:
        while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()

    assert (process.returncode, stderr) == (130, "python -m launch: interrupted\n")
    pids = (tmp_path / "pids").read_text().split()
    end = time.monotonic() + 10
    while not all(map(has_ended, pids)):
        assert time.monotonic() < end


def test_a_dry_run_prints_commands_and_does_nothing(agent, tmp_path, kept):
    words = ("install", "--hosts", "pi-1,pi-2", "--agent", agent, "--dry-run")

    done = run(sys.executable, "-m", "launch", *words, XDG_CACHE_HOME=str(tmp_path))

    assert done.returncode == 0, done.stderr
    # The agent leads to this machine, whose own environment lies there.
    kept(done.stdout.replace(str(agent), "AGENT"))


def test_a_machine_that_does_not_reach_an_index_says_so(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))

    with pytest.raises(HeptiError) as caught:
        asyncio.run(fetch(WheelSet("3.11", "aarch64", "2.36", full=False), tmp_path / "set"))
    kept(caught.value)

    assert not (tmp_path / "set").exists()
