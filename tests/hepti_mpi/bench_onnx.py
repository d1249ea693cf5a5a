"""Every ONNX file that is at hand: converts and is exact on 1 and 3 uneven ranks, or is refused in one line.

`python -m tests.hepti_mpi.bench_onnx [FILE_OR_FOLDER ...]` takes the graphs of onnx's own tests, and what is named:
files, folders, or wheels. Whatever is no network of images takes part, too: it must be refused, or exact.
"""

from __future__ import annotations

import io
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from rich.console import Console
from rich.table import Table

from hepti_mpi.comm.group import world
from hepti_mpi.measure import timing
from hepti_mpi.measure.profile_network import profile_network
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.programs.convnets.planner import solve_network
from tests.kit.convnets import emulate, plan_of
from weights.networks.convert import read_network

UNEVEN = (0.2, 0.5, 0.3)
SLOWER = (1.0, 0.8, 1.3)  # of the three, how much slower than what was measured
SIZES = (None, (224, 224), (48, 320))
EXACT = 1e-5  # of the largest number
DATA = Path(onnx.__file__).parent / "backend/test/data"
STATES = ("exact", "refused", "no reference", "wrong", "crashed")


def main() -> int:
    """Check all, print what is neither exact nor refused, and the table of counts; return the exit code."""
    timing.LEAST_S = timing.MOST_S = 0.01
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(4)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for source, name, model in (*named(sys.argv[1:]), *zoo(), *node_tests()):
        state, why = checked(model)
        counts[source][state] += 1
        if state != "exact":
            print(f"{state:8} {source} {name}: {why}", flush=True)
    table = Table("from", "files", *STATES)
    for source, own in counts.items():
        table.add_row(source, str(own.total()), *(str(own[state]) for state in STATES))
    Console().print(table)
    return int(any(own["wrong"] + own["crashed"] for own in counts.values()))


def named(arguments):
    """Yield what the command line names."""
    for path in map(Path, arguments):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    if name.endswith(".onnx"):
                        yield path.name.split("-")[0], Path(name).stem, onnx.load_from_string(wheel.read(name))
        else:
            for file in sorted(path.rglob("*.onnx")) if path.is_dir() else [path]:
                yield path.name, file.stem, onnx.load(file)


def zoo():
    """Yield the graphs in onnx's own package."""
    for file in sorted(DATA.rglob("*.onnx")):
        kind, model = file.relative_to(DATA).parts[0], onnx.load(file)
        name = file.stem if kind == "light" else file.parent.name
        yield f"onnx {kind}", name, with_weights(model) if kind == "light" else model


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph of the zoo with random weights: in the package all are alike, and scores differ by nothing."""
    draw, graph = np.random.default_rng(1), model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in shapes]:
        shape = tuple(shapes[node.input[0]])
        array = draw.standard_normal(shape) * np.sqrt(2 / max(np.prod(shape[1:]), 1))
        array = array if len(shape) > 1 else 0.5 + np.abs(array) / 4
        graph.node.remove(node)
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), node.output[0]))
    return model


def node_tests():
    """Yield the models of onnx's node tests that have an input of four axes, all others given as constants."""
    from onnx.backend.test.loader import load_model_tests

    for test in load_model_tests(kind="node"):
        model, data = test.model, test.data_sets
        if model is None:
            folder = Path(test.model_dir)
            model = onnx.load(folder / "model.onnx")
            files = sorted((folder / "test_data_set_0").glob("input_*.pb"), key=lambda f: int(f.stem[6:]))
            data = [([loaded(file) for file in files], ())]
        inputs = list(model.graph.input)
        if not (inputs and is_image(inputs[0])):
            continue
        source = "onnx node tests, one input" if len(inputs) == 1 else "onnx node tests, others constant"
        if data is not None and len(inputs) > 1:
            given = zip(inputs[1:], data[0][0][1:], strict=False)
            constants = [(value.name, array) for value, array in given if isinstance(array, np.ndarray)]
            model = onnx.ModelProto.FromString(model.SerializeToString())
            for name, array in constants:
                model.graph.initializer.append(numpy_helper.from_array(array, name))
            left = [v for v in model.graph.input if v.name not in dict(constants)]
            del model.graph.input[:]
            model.graph.input.extend(left)
        yield source, test.name, model


def loaded(file):
    """Return a tensor of onnx's test data; None of what is none."""
    try:
        return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
    except Exception:
        return None


def is_image(value) -> bool:
    return value.type.HasField("tensor_type") and len(value.type.tensor_type.shape.dim) == 4


def checked(model: onnx.ModelProto) -> tuple[str, str]:
    """Return how a model fares, and why."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(model.SerializeToString())
        try:
            batch = batch_of(model)
            state, why = compared(path, *read(path, model))
            return (
                (state, why) if batch <= 1 or state != "no reference" else ("refused", f"it is for batches of {batch}")
            )
        except HeptiError as error:
            line = str(error).replace(f"{path}", "it")
            return ("refused" if "\n" not in line else "crashed"), line
        except Exception:
            return "crashed", "\n" + traceback.format_exc(limit=-4)


def batch_of(model: onnx.ModelProto) -> int:
    """Return how many images a file is for, 1 where it is open."""
    shapes = [value.type.tensor_type.shape for value in model.graph.input[:1] if is_image(value)]
    return max((shape.dim[0].dim_value for shape in shapes), default=1)


def read(path: Path, model: onnx.ModelProto):
    """Convert a model; where it leaves the size open, of the first size that it takes. Batches become one image."""
    if batch_of(model) > 1:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        path.write_bytes(model.SerializeToString())
    for size in SIZES:
        try:
            return read_network(path, size)[:2]
        except HeptiError as error:
            is_open = "--size" in str(error) or (size is not None and "cannot be computed" in str(error))
            if not is_open or size == SIZES[-1]:
                raise
    raise AssertionError


def compared(path: Path, net: ConvNet, tensors) -> tuple[str, str]:
    """Compute by the plan of one device, of three, and by uneven rows, and compare with the whole file."""
    pixels = np.random.default_rng(0).integers(0, 256, net.shapes[net.input], np.uint8)
    try:
        wanted, near = whole(path, pixels), whole(path, pixels, 1 + 1e-6)
    except Exception as error:
        return "no reference", f"onnxruntime computes it neither: {str(error).splitlines()[0]}"
    cluster = profile_network(net, world())
    devices = [
        replace(cluster.devices[0], name=f"pi-{n}", nodes=cluster.devices[0].nodes.slowed(factor))
        for n, factor in enumerate(SLOWER)
    ]
    three = Cluster(tuple(devices), cluster.network)
    plans = {
        "alone": solve_network(net, cluster),
        "of three": solve_network(net, three),
        "uneven rows": plan_of(net, [(stop, "rows", UNEVEN) for stop in range(1, len(net.nodes) + 1)], 3)
        if len(net.nodes) < 200
        else plan_of(net, [(len(net.nodes), "rows", UNEVEN)], 3),
    }
    for name, plan in plans.items():
        found = emulate(net, tensors, plan, pixels)
        for output, expected, beside in zip(net.outputs, wanted, near, strict=True):
            one, two = found[output].reshape(-1), np.asarray(expected).reshape(-1).astype(np.float32)
            if one.size != two.size:
                return "wrong", f"{name}: {output} has {one.size} numbers, should have {two.size}"
            # Where a network itself makes much of little, no sum in another order is nearer than that.
            noise = far(np.asarray(beside).reshape(-1).astype(np.float32), two)
            off = far(one, two)
            if off > max(EXACT, 3 * noise if np.isfinite(noise) else 0):
                return "wrong", f"{name}: {output} is off by {off:.1e}"
    return "exact", ""


def far(one, two) -> float:
    """Return how far results are apart, of the largest number."""
    if not (np.array_equal(np.isnan(one), np.isnan(two)) and np.array_equal(np.isinf(one), np.isinf(two))):
        return np.inf
    numbers = np.isfinite(two)
    if not numbers.any():
        return 0.0
    return float(np.abs(one[numbers] - two[numbers]).max() / max(np.abs(two[numbers]).max(), 1e-20))


def whole(path: Path, pixels, factor=1.0):
    """Return what onnxruntime computes of the file itself, of pixels as it takes them, times a factor if not bytes."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (image, *_) = session.get_inputs()
    shape = [size if isinstance(size, int) and size > 0 else 1 for size in image.shape]
    array = (pixels * np.float64(factor / 255)).astype(np.float32) if image.type == "tensor(float)" else pixels
    if shape[1:] != list(pixels.shape) and shape[-1] == pixels.shape[0] and shape[1] != pixels.shape[0]:
        array = array.transpose(1, 2, 0)
    return session.run(None, {image.name: np.ascontiguousarray(array)[None]})


if __name__ == "__main__":
    with io.StringIO():
        sys.exit(main())
