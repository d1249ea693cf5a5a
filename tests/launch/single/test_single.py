"""The stand-alone single-device programs: all of them compute the same layers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from launch.single.command import main, prepared, random_layers
from solver.base.errors import HeptiError
from solver.model.named import named_model
from tests.kit import reference
from tests.kit.plans import like

ROOT = Path(__file__).parents[3]
SMALL = {"hidden": 48, "ffn": 96, "heads": 4, "layers": 2}


def spec_of(name, **changes):
    return like(named_model(name), **SMALL, **changes)


def x_of(spec, rows=9):
    return np.random.default_rng(3).standard_normal((rows, spec.hidden), np.float32)


def layers_by_reference(spec, layers, x):
    """Compute the layers as the tests' oracle does, which has other names and other ways round."""
    for w in layers:
        tensors = {"attention/output/weight": w["out"], "attention/output/bias": w["out_bias"]}
        for name, weight, bias in zip(
            ("query", "key", "value"), np.split(w["qkv"], 3, axis=1), np.split(w["qkv_bias"], 3), strict=True
        ):
            tensors |= {f"attention/{name}/weight": weight.T, f"attention/{name}/bias": bias}
        tensors |= {"mlp/up/weight": w["up"].T, "mlp/up/bias": w["up_bias"]}
        tensors |= {"mlp/down/weight": w["down"], "mlp/down/bias": w["down_bias"]}
        for block in ("attention", "mlp"):
            tensors |= {f"{block}/norm/weight": w[f"{block}_norm"], f"{block}/norm/bias": w[f"{block}_norm_bias"]}
        x = reference.layer(x, tensors, spec.blocks)
    return x


@pytest.mark.parametrize("name", ["bert-base", "vit-base"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "tanh"])
@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_every_runtime_computes_the_same_layers(name, activation, backend):
    """Post-norm and pre-norm, as the oracle of all tests."""
    pytest.importorskip(backend)
    spec = spec_of(name, activation=activation)
    layers, x = random_layers(spec), x_of(spec)
    expected = layers_by_reference(spec, layers, x)

    result = prepared(backend, "float32", spec, layers)(x)

    assert result.dtype == np.float32
    assert np.abs(result - expected).max() < 1e-4


def test_int8_is_near_float32():
    pytest.importorskip("onnxruntime")
    spec = spec_of("bert-base")
    layers, x = random_layers(spec), x_of(spec)
    exact = layers_by_reference(spec, layers, x)

    rough = prepared("onnxruntime", "int8", spec, layers)(x)

    assert 0 < np.abs(rough - exact).max() < 0.1
    assert float((rough * exact).sum() / np.linalg.norm(rough) / np.linalg.norm(exact)) > 0.999


@pytest.mark.parametrize("threads", ["2,1", "abc", ""])
def test_threads_may_be_a_list_or_garbage(threads, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    spec = spec_of("bert-base")

    assert prepared("onnxruntime", "float32", spec, random_layers(spec))(x_of(spec)).shape == (9, 48)


def test_a_runtime_that_is_not_installed_is_named(monkeypatch, kept):
    monkeypatch.delitem(sys.modules, "launch.single.on_torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(HeptiError) as caught:
        prepared("torch", "float32", spec_of("bert-base"), [])
    kept(caught.value)


def test_the_command_prints_the_seconds_of_the_requests_that_count():
    pytest.importorskip("onnxruntime")
    spec = spec_of("bert-base")
    command = [
        sys.executable,
        "-m",
        "launch.single",
        "--spec",
        spec.to_json(),
        "--rows",
        "5",
        "--backend",
        "onnxruntime",
    ]
    done = subprocess.run(
        [*command, "--warmup", "1", "--repeat", "3"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    seconds = json.loads(done.stdout)["seconds"]

    assert len(seconds) == 3
    assert all(0 < value < 10 for value in seconds)


def test_torch_runs_in_float32_only(capsys, kept):
    pytest.importorskip("torch")
    words = ["--spec", spec_of("bert-base").to_json(), "--rows", "5", "--backend", "torch", "--precision", "int8"]

    assert main(words) == 2
    kept(capsys.readouterr().err)
