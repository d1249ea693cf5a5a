"""The shape of the tree: which room may import which, and one address per heavy dependency."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What each room may import of the others. `launch` reads weights files where it serves them: the server counts a
# request's tokens before it queues.
ROOMS = {"solver": set(), "weights": {"solver"}, "hepti_mpi": {"solver", "weights"}, "launch": {"solver", "weights"}}
HEAVY = ("mpi4py", "cvxpy", "pulp", "h5py", "onnxruntime", "safetensors", "tokenizers", "jinja2", "gguf", "matplotlib")
ONE_A_PACKAGE = ("onnxruntime",)  # which folds graphs, and computes
# The rooms of a package, each with those before it that it may import. What lies in no room may import all of them.
ORDER = {
    "solver": ("base", "model", "cluster", "plan", "schedule", "programs", "systems", "live", "show"),
    "weights": ("file", "inputs", "tokens", "convert", "networks", "decoders"),
    "hepti_mpi": (
        "base",
        "requests",
        "comm",
        "kernels",
        "program",
        "engine",
        "live",
        "report",
        "decoding",
        "measure",
        "session",
    ),
    "launch": (
        "base",
        "start",
        "lab",
        "doctor",
        "install",
        "single",
        "compare",
        "watch",
        "api",
        "serve",
        "trials",
        "bench",
        "front",
    ),
}
MOST_FILES = 13  # in a room; `systems` has one file a published system
# Stand-alone programs on other runtimes, which Hepti is compared with: started by name, imported by nobody.
COMPARED = ("on_llamacpp.py", "on_onnxruntime.py", "on_torch.py")
# References of the tests, or tools that a board can do without.
FORBIDDEN = {"torch", "transformers", "scipy", "sentence_transformers"}


# Types that are one family's; what knows them is to change where a family comes. The number of files may only fall.
FAMILY_TYPES = {
    "solver.model.spec.ModelSpec", "solver.model.convnet.ConvNet", "solver.model.decoder.Decoder",
    "solver.plan.plan.Plan", "solver.plan.segments.SegmentPlan", "solver.plan.decoder_plan.DecoderPlan",
}  # fmt: skip
KNOW_A_FAMILY = 165


def imports(path):
    """Return the dotted names that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


# Module -> top-level names it imports.
MODULES = {
    path.relative_to(ROOT): {name.split(".")[0] for name in imports(path)}
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_flow_one_way(room):
    """The order is solver <- weights <- hepti_mpi, and solver <- weights <- launch."""
    others = set(ROOMS) - ROOMS[room] - {room}
    wrong = {path: names & others for path, names in MODULES.items() if path.parts[0] == room and names & others}

    assert not wrong


def test_of_launch_only_the_service_and_the_program_interface_read_weights_files():
    used = [path for path, names in MODULES.items() if path.parts[0] == "launch" and "weights" in names]

    assert {path.parts[1] for path in used} == {"serve", "program.py"}


@pytest.mark.parametrize("dependency", HEAVY)
def test_a_heavy_dependency_has_one_address(dependency):
    """At most one module of the packages imports it; one of each, where two need it."""
    addresses = [path for path, names in MODULES.items() if dependency in names and path.name not in COMPARED]
    packages = [path.parts[0] for path in addresses]

    assert len(addresses) <= 1 or (dependency in ONE_A_PACKAGE and len(packages) == len(set(packages))), addresses


def test_processes_are_started_by_launch_and_for_the_trial_of_a_backend():
    """Whether a wheel ends a process can only be seen from outside of it."""
    addresses = [str(path) for path, names in MODULES.items() if "subprocess" in names]

    assert addresses == ["hepti_mpi/kernels/trial.py", "launch/base/shell.py"]


def test_nothing_is_measured_or_waited_for_by_a_clock_that_can_be_set():
    """What asks for the time of day says it to people, or puts a date on something: a board has no clock of its own."""
    dates = {
        "hepti_mpi/measure/profile.py", "launch/lab/up.py", "launch/serve/app.py", "launch/serve/chat.py",
        "launch/serve/encoders.py", "launch/serve/supervisor.py", "launch/trials/sorts.py", "launch/watch/terminal.py",
        "weights/inputs/templates.py",
    }  # fmt: skip
    clock = re.compile(r"\btime\.(?:time(?:_ns)?|localtime|gmtime|ctime)\(|\bdatetime\.(?:now|utcnow|today)\(")
    from_time = re.compile(r"^from time import|CLOCK_REALTIME", re.MULTILINE)

    found = {path for path in MODULES if clock.search((ROOT / path).read_text())}

    assert {str(path) for path in found} == dates
    assert {path.name for path in MODULES if from_time.search((ROOT / path).read_text())} == {"sorts.py"}
    assert not [
        path for path in (ROOT / "launch").rglob("*.js") if re.search(r"Date\.now|new Date\(\)", path.read_text())
    ]


def test_the_solver_knows_neither_mpi_nor_hdf5():
    used = {
        path: names & {"mpi4py", "h5py"} for path, names in MODULES.items() if path.parts[0] in ("solver", "launch")
    }

    assert not any(used.values()), used


def test_the_packages_do_without_the_references():
    used = {path: names & FORBIDDEN for path, names in MODULES.items() if path.name not in COMPARED}

    assert not any(used.values()), used


@pytest.mark.parametrize(
    "module",
    [
        "hepti_mpi.session.job, hepti_mpi.session.encoder",
        "hepti_mpi.session.decoder_rank, hepti_mpi.session.decoder, hepti_mpi.kernels.kinds.numpy_run",
        "hepti_mpi.measure.profile_command, hepti_mpi.measure.profile_decoder",
    ],
)
def test_a_job_begins_without_onnxruntime(module):
    """Wheels were seen that end the process at import: a job imports it only where a trial has shown that it works."""
    code = f"import sys; sys.modules['onnxruntime'] = sys.modules['onnx'] = None; import {module}"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_nobody_imports_the_programs_that_hepti_is_compared_with():
    compared = {f"launch.single.{name.removesuffix('.py')}" for name in COMPARED}

    assert not [path for path in MODULES if imports(ROOT / path) & compared]


@pytest.mark.parametrize("package", ORDER)
def test_a_room_imports_only_those_before_it(package):
    order = ORDER[package]
    wrong = set()
    for path in MODULES:
        if path.parts[0] == package and len(path.parts) > 2:
            for name in imports(ROOT / path):
                parts = name.split(".")
                if parts[0] == package and parts[1] != path.parts[1]:
                    before = order[: order.index(path.parts[1])]
                    if parts[1] not in before:
                        wrong.add(f"{path} imports {name}")

    assert not wrong


@pytest.mark.parametrize("package", ORDER)
def test_a_package_is_its_rooms_and_a_room_is_a_dozen_files(package):
    rooms = {folder.name for folder in (ROOT / package).iterdir() if (folder / "__init__.py").exists()}

    assert rooms == set(ORDER[package])
    for folder in (ROOT / package, *((ROOT / package / room) for room in rooms)):
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES or folder.name == "systems", folder
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_what_the_documents_name_is_there():
    """Files of the packages and tests, by their path from the root."""
    named = re.compile(r"\b(?:solver|weights|hepti_mpi|launch|tests)/[\w/]+\.(?:py|toml)\b")
    missing = {
        f"{page.name}: {path}"
        for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for path in named.findall(page.read_text())
        if not (ROOT / path).exists()
    }

    assert not missing


def test_a_type_name_means_one_thing():
    """Classes and type aliases of all packages; type variables are their modules' own."""
    homes = defaultdict(set)
    for path in MODULES:
        for node in ast.parse((ROOT / path).read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = (
                [node.name] if isinstance(node, ast.ClassDef) else [t.id for t in targets if isinstance(t, ast.Name)]
            )
            value = getattr(node, "value", None)
            if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "TypeVar":
                continue
            for name in names:
                if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                    homes[name].add(str(path))

    assert not {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}


def test_fewer_and_fewer_files_know_a_family():
    """A new family is to be a kind of block, not a tower: write the number down where it has fallen."""
    known = [path for path in MODULES if imports(ROOT / path) & FAMILY_TYPES]

    assert len(known) == KNOW_A_FAMILY


def test_there_are_no_circles():
    """Within a room, too, modules can be put in an order in which each imports only those before it."""
    files = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): ROOT / path for path in MODULES}
    needs = defaultdict(set)
    for module, path in files.items():
        for name in imports(path):
            target = name if name in files else name.rpartition(".")[0]
            if target in files and target != module:
                needs[module].add(target)
    left = set(files)
    while free := {module for module in left if not needs[module] & left}:
        left -= free

    assert not left


@pytest.mark.parametrize("package", ["solver", "launch"])
def test_a_package_imports_nothing_until_it_is_asked_for_what_programs_use(package):
    code = f"import sys; before = set(sys.modules); import {package}; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert run.stdout.split() == [package]


@pytest.mark.parametrize(
    "module", ["solver.plan.plan", "solver.plan.holdings", "solver.model.spec", "solver.cluster.cluster"]
)
def test_reading_a_plan_needs_no_heavy_library(module):
    """A worker that reads a plan starts with the standard library and what the file formats need."""
    code = f"import sys, {module}; print(*sorted({{'mpi4py', 'h5py', 'cvxpy', 'pulp'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert run.stdout.strip() == ""
