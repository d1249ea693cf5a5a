"""The command line as a person meets it: help with an example, one line and exit code 2 for what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.__main__ import COMMANDS, main
from tests.kit import inside

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["doctor", "--hostfile", "no-such-file"],
            "python -m launch doctor: there is no hostfile no-such-file: write one host a line, as `pi-0 slots=1`\n",
        ),
        (["doctor", "--hostfile", "pis", "--model", "none.h5"], "no weights file none.h5: make one with hepti convert"),
        (
            ["hostfile", "host.invalid"],
            "host.invalid: its name does not resolve: check the name, or write its address, or",
        ),
        (["bench", "offload", "--runs", "1"], "--runs is 1, must be at least 2"),
        ([], "the following arguments are required: COMMAND (see python -m launch --help)"),
        (["lab", "upp"], "invalid choice: 'upp'"),
        (["lab", "run", "--np", "two"], "invalid int value: 'two' (see python -m launch lab run --help)"),
        (["doctor"], "one of the arguments --hosts --hostfile is required (see python -m launch doctor --help)"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, complaint):
    done = launch(*words)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


def test_mistakes_end_the_process_with_one_line():
    done = process("doctor", "--hostfile", "no-such-file")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("python -m launch doctor: there is no hostfile no-such-file: ")
    assert done.stderr.count("\n") == 1


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gets as far as the file")


@needs_root
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gflops = -1\nmemory_gib = 1", "gflops is -1"),
        ("gflops = 0\nmemory_gib = 1", "gflops is 0"),
        ("gflops = 10", "has no memory_gib"),
        ("gflops = 1e9\nmemory_gib = 1", "gflops is 1000000000.0, must be between"),
        ("gflop = 10\ngflops = 10\nmemory_gib = 1", "did you mean gflops?"),
        ('gflops = 10\nmemory_gib = 1\n[[device]]\nname = "pi-0"\ngflops = 10\nmemory_gib = 1', "called pi-0"),
    ],
)
def test_bad_cluster_files_are_refused(tmp_path, text, complaint):
    path = tmp_path / "bad.toml"
    network = "[network]\nbandwidth_mbps = 940\n"
    path.write_text(f'format = "hepti-cluster/1"\n[[device]]\nname = "pi-0"\n{text}\n{network}')
    done = launch("lab", "up", path)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


@needs_root
@pytest.mark.parametrize(
    ("scale", "complaint"),
    [("1", "GFLOP/s; at scale 1 "), ("0", "--scale is 0, must be above 0 and at most 1")],
)
def test_a_scale_at_which_the_machine_cannot_carry_a_lab_is_refused(tmp_path, scale, complaint):
    path = tmp_path / "test-huge.toml"
    device = '[[device]]\nname = "pi-0"\ngflops = 10000\nmemory_gib = 1\n'
    path.write_text(f'format = "hepti-cluster/1"\n{device}[network]\nbandwidth_mbps = 940\n')
    done = launch("lab", "up", path, "--scale", scale)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


@needs_root
def test_a_missing_tool_is_named_with_its_package(tmp_path):
    done = process("lab", "up", "mixed4", env={"PATH": str(tmp_path)})

    assert done.returncode == 2
    assert done.stderr == (
        "python -m launch lab: a lab needs the program ip, which is not installed: apt install iproute2\n"
    )


@needs_root
def test_without_root_one_line_says_so():
    """As the user nobody, where setpriv is there to become it."""
    command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "launch", "lab", "up", "mixed4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if "launch:" not in done.stderr:
        pytest.skip("nobody may not run this interpreter")

    assert done.returncode == 2
    assert done.stderr.startswith("python -m launch lab: a lab needs root")
    assert done.stderr.count("\n") == 1
