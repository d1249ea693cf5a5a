"""The command line as a person meets it: help with an example, one line and exit code 2 for what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.__main__ import COMMANDS, main
from tests.kit import inside, refusals
from tests.kit.clusters import cluster_text

ROOT = Path(__file__).parents[2]
REFUSED = Path(__file__).parent / "refusals"
# Of one device, in files of these names.
BAD = {
    "below-zero": "gflops = -1\nmemory_gib = 1",
    "zero": "gflops = 0\nmemory_gib = 1",
    "no-memory": "gflops = 10",
    "huge": "gflops = 1e9\nmemory_gib = 1",
    "misspelt": "gflop = 10\ngflops = 10\nmemory_gib = 1",
    "twice": 'gflops = 10\nmemory_gib = 1\n[[device]]\nname = "pi-0"\ngflops = 10\nmemory_gib = 1',
    "fast": "gflops = 10000\nmemory_gib = 1",
}


def launch(*words):
    return inside.run(main, *words)


def process(*words, **options):
    """Run `python -m launch …`."""
    command = [sys.executable, "-m", "launch", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.mark.parametrize("words", [[], ["lab"], ["doctor"], ["hostfile"], ["bench"]])
def test_help_has_an_example(words):
    done = launch(*words, "--help")

    assert done.returncode == 0
    assert "example" in done.stdout
    assert "python -m launch" in done.stdout


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "bench"])
def test_a_command_does_not_import_what_benchmarks_need(command):
    """It takes longer than all else until a service listens, or a lab is taken down."""
    words = f"import sys; sys.argv = ['launch', '--debug', {command!r}]"
    program = f"{words}; from launch.__main__ import load; load(); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert COMMANDS[command] in done.stdout
    assert "launch.bench" not in done.stdout


@pytest.mark.parametrize("words", [["lab"], ["lab", "set"]])
def test_help_says_a_percentage_as_it_is_typed(words):
    done = launch(*words, "--help")

    assert "cpu=25% " in " ".join(done.stdout.split())
    assert "%%" not in done.stdout


def test_mistakes_are_one_line_and_exit_code_2(tmp_path):
    refusals.check(REFUSED / "command_line.txt", {"python -m launch": main}, tmp_path)


def test_mistakes_end_the_process_with_one_line():
    done = process("doctor", "--hostfile", "no-such-file")

    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-file" in done.stderr
    assert done.stderr.count("\n") == 1


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gets as far as the file")


@needs_root
def test_bad_cluster_files_are_refused(tmp_path):
    for name, text in BAD.items():
        (tmp_path / f"{name}.toml").write_text(cluster_text(text))

    refusals.check(REFUSED / "lab.txt", {"python -m launch": main}, tmp_path)


@needs_root
def test_a_scale_at_which_the_machine_cannot_carry_a_lab_is_refused(tmp_path):
    path = tmp_path / "test-huge.toml"
    path.write_text(cluster_text("gflops = 10000\nmemory_gib = 1"))
    done = launch("lab", "up", path, "--scale", 1)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "GFLOP/s; at scale 1 " in done.stderr


@needs_root
def test_a_missing_tool_is_named_with_its_package(tmp_path, kept):
    done = process("lab", "up", "mixed4", env={"PATH": str(tmp_path)})

    assert done.returncode == 2
    kept(done.stderr)


@needs_root
def test_without_root_one_line_says_so():
    """As the user nobody, where setpriv is there to become it."""
    command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "launch", "lab", "up", "mixed4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if "launch:" not in done.stderr:
        pytest.skip("nobody may not run this interpreter")

    assert done.returncode == 2
    assert done.stderr.startswith("python -m launch lab: ")
    assert done.stderr.count("\n") == 1
