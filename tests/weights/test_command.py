"""`python -m weights` from outside."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from solver.model.spec import tensor_shapes
from weights.file.store import WeightsFile


def test_help_has_an_example(run_weights):
    for arguments in (["--help"], ["convert", "--help"], ["verify", "--help"]):
        result = run_weights(*arguments)
        assert result.returncode == 0
        assert "hepti convert checkpoints/all-MiniLM-L6-v2 minilm.h5" in result.stdout


@pytest.fixture
def model(tmp_path, text_spec, random_tensors, write_file) -> Path:
    return write_file(text_spec, random_tensors(text_spec), tokenizer="{}")


def test_synthesize_inspect_verify(tmp_path, weights_process, run_weights):
    """The life of a file."""
    path = tmp_path / "made.h5"

    made = weights_process("synthesize", "minilm-l6", path, "--layers", 1, "--seed", 9, "--dtype", "float16")
    assert (made.returncode, made.stderr) == (0, "")
    assert f"{path}: minilm-l6, 1 layer, hidden 384" in made.stdout

    shown = run_weights("inspect", path)
    assert shown.returncode == 0
    for text in ("texts of up to 256 tokens", "pooling mean, normalised", "layers/0-0/mlp/down/weight"):
        assert text in shown.stdout

    verified = run_weights("verify", path)
    assert verified.returncode == 0
    with WeightsFile(path) as weights:
        assert weights.fingerprint in verified.stdout
        assert weights.source == "synthesized minilm-l6, seed 9"


def test_inspect_as_json(model, text_spec, run_weights):
    facts = json.loads(run_weights("inspect", model, "--json").stdout)

    with WeightsFile(model) as weights:
        assert facts["fingerprint"] == weights.fingerprint
    assert facts["format"] == "hepti-weights/1"
    assert facts["model"] == json.loads(text_spec.to_json())
    assert facts["tokenizer"] is True
    assert {name: tuple(tensor["shape"]) for name, tensor in facts["tensors"].items()} == tensor_shapes(text_spec)
    assert facts["bytes"] == model.stat().st_size


def test_who_reads_no_further_is_told_nothing(model):
    command = [sys.executable, "-m", "weights", "inspect", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()

    assert (process.returncode, errors) == (128 + signal.SIGPIPE, "")


def test_inspect_leaves_signals_to_the_program(model, run_weights):
    assert run_weights("inspect", model).returncode == 0
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN, "a process that inspects in a test would end by a pipe"


def test_inspect_an_image_model(image_spec, random_tensors, write_file, run_weights):
    shown = run_weights("inspect", write_file(image_spec, random_tensors(image_spec))).stdout

    assert "images of 12 by 20, 17 rows each" in shown
    assert "classifier of 2 labels: " in shown


def test_verify_names_the_first_damaged_tensor(model, text_spec, random_tensors, run_weights):
    data = bytearray(model.read_bytes())
    for name in ("layers/2/mlp/up/weight", "layers/1/attention/key/weight"):
        data[data.index(random_tensors(text_spec)[name][3].tobytes())] ^= 1
    model.write_bytes(data)

    result = run_weights("verify", model)

    assert result.returncode == 2
    assert "tensor layers/1/attention/key/weight is damaged" in result.stderr
    assert result.stderr.startswith(f"python -m weights verify: {model}: ")
    assert result.stderr.count("\n") == 1


def test_verify_sees_a_damaged_tokenizer(text_spec, random_tensors, write_file, run_weights):
    path = write_file(text_spec, random_tensors(text_spec), tokenizer="a tokenizer of some length")
    path.write_bytes(path.read_bytes().replace(b"some length", b"same length"))

    result = run_weights("verify", path)

    assert result.returncode == 2
    assert "the tokenizer is damaged" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["paint"],
        ["verify"],
        ["verify", "nowhere.h5"],
        ["verify", "pyproject.toml"],
        ["inspect", "solver"],
        ["convert", "nowhere", "x.h5"],
        ["convert", "nowhere.onnx", "x.h5"],
        ["convert", "nowhere.gguf", "x.h5"],
        ["convert", "solver", "x.h5"],
        ["convert", "README.md", "x.h5"],
        ["convert", "solver", "x.txt"],
        ["synthesize", "bert-base", "x.txt"],
        ["convert", "solver", "x.h5", "--dtype", "int4"],
        ["synthesize", "bert-larg", "x.h5"],
        ["synthesize", "resnet8", "x.h5"],
        ["synthesize", "quux", "x.h5"],
        ["synthesize", "bert-base", "nowhere/x.h5"],
        ["synthesize", "bert-base", "x.h5", "--layers", "0"],
        ["synthesize", "bert-base", "x.h5", "--seed", "-1"],
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(run_weights, arguments, kept):
    result = run_weights(*arguments)

    assert result.returncode == 2
    assert result.stdout == ""
    kept(result.stderr)
    assert result.stderr.count("\n") == 1


def test_a_weights_file_is_not_converted_but_run(run_weights, tmp_path, model, kept):
    result = run_weights("convert", model, tmp_path / "x.h5")

    assert result.returncode == 2
    kept(result.stderr)


def test_mistakes_end_the_process_with_one_line(weights_process):
    result = weights_process("verify", "nowhere.h5")

    assert (result.returncode, result.stdout) == (2, "")
    assert "no weights file nowhere.h5" in result.stderr
    assert result.stderr.count("\n") == 1


def test_debug_shows_a_traceback(weights_process):
    assert "Traceback" in weights_process("verify", "nowhere.h5", "--debug").stderr


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough("the other signal"))]
)
def test_a_stopped_command_leaves_nothing_behind(tmp_path, number):
    """Between two calls to HDF5, not inside of one."""
    command = [sys.executable, "-m", "weights", "synthesize", "bert-large", str(tmp_path / "model.h5")]
    root = Path(__file__).resolve().parents[2]
    # A job that a shell started in the background ignores SIGINT, and so would what it starts.
    heed = lambda: signal.signal(number, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        while process.poll() is None and not list(tmp_path.iterdir()):
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (128 + number, "python -m weights: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_bar_shows_on_a_terminal_after_a_second(tmp_path):
    """And on nothing else: the other tests see an empty stderr. The file is small, and every part of it takes long."""
    leader, follower = pty.openpty()
    program = (
        "import sys, time, weights.synthesize as module; from weights.cli import main; make = module._block; "
        "module._block = lambda *given: time.sleep(0.004) or make(*given); sys.exit(main(sys.argv[1:]))"
    )
    words = ["synthesize", "minilm-l6", str(tmp_path / "model.h5"), "--layers", "1"]
    command = [sys.executable, "-c", program, *words]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                shown += os.read(leader, 1 << 16)
            except OSError:  # Linux says so when the other end is closed
                break
    os.close(leader)

    assert process.returncode == 0
    assert b"synthesizing" in shown
    assert b"MB/s" in shown
