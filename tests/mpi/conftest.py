"""`mpirun -n 3 python -m pytest tests/mpi`: every test runs on all ranks, for any number of them."""

import io
import os
import shutil
import tempfile
import threading
import traceback
from pathlib import Path

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hepti_mpi.__main__ import limit_threads

limit_threads()  # as `python -m hepti_mpi` does: BLAS threads of several ranks wait for each other

from hepti_mpi.comm import group as comm  # noqa: E402
from hepti_mpi.comm.wires import EXACT  # noqa: E402
from tests.kit.encoders import LONG, POST, PRE  # noqa: E402
from tests.kit.kept import Kept  # noqa: E402
from weights.file.store import WeightsFile  # noqa: E402
from weights.synthesize import synthesize  # noqa: E402

HERE = Path(__file__).parent
ALONE_S = 20.0  # until a rank that failed takes it that the others wait for it

# Every rank is a pytest session: in one folder their clean-ups at the end meet, and remove the same link.
ROOT = Path(tempfile.gettempdir(), f"pytest-of-rank-{MPI.COMM_WORLD.rank}")
ROOT.mkdir(exist_ok=True)
os.environ["PYTEST_DEBUG_TEMPROOT"] = str(ROOT)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Let rank 0 alone print, since all ranks have the same verdict."""
    if MPI.COMM_WORLD.rank != 0:
        config.get_terminal_writer()._file = io.StringIO()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tell mpi-pytest that every test here fits the ranks that there are."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.parallel(MPI.COMM_WORLD.size))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Reduce the verdict: where one rank fails, all fail, and none waits for it in the next test.

    Where the others wait for what this rank would have sent, nobody hears of its error: it says so, and ends the job.
    """
    if not pyfuncitem.path.is_relative_to(HERE):
        return (yield)
    try:
        result = yield
    except Exception as error:
        alone = threading.Timer(ALONE_S, end_job, [pyfuncitem, traceback.format_exc()])
        alone.daemon = True
        alone.start()
        try:
            parallel_assert(False, f"rank {MPI.COMM_WORLD.rank}: {error}")
        finally:
            alone.cancel()
        raise
    parallel_assert(True)
    return result


@pytest.fixture(scope="session")
def all_ranks():
    return comm.world()


@pytest.fixture(scope="session")
def shared_folder(all_ranks):
    """Return a folder that all ranks see."""
    path = all_ranks.from_root((lambda: Path(tempfile.mkdtemp())) if all_ranks.rank == 0 else None)
    yield path
    all_ranks.barrier()
    if all_ranks.rank == 0:
        shutil.rmtree(path)


@pytest.fixture
def folder(world, shared_folder):
    """Return an empty folder of one test's that all ranks see."""
    path = shared_folder / "test"
    if world.rank == 0:
        path.mkdir()
    world.barrier()
    yield path
    world.barrier()
    if world.rank == 0:
        shutil.rmtree(path)


@pytest.fixture
def kept(request, all_ranks, shared_folder):
    """Return what asserts on every rank that a text is as it is kept; rank 0 writes what there is now."""
    return Kept(request.node, shared_folder, writes=all_ranks.rank == 0)


@pytest.fixture(scope="session")
def files(all_ranks, shared_folder):
    """Return weights files of both families, which all ranks see."""
    if all_ranks.rank == 0:
        for spec in (POST, PRE, LONG):
            synthesize(shared_folder / f"{spec.name}.h5", spec, 0)
    all_ranks.barrier()
    opened = {spec.name: WeightsFile(shared_folder / f"{spec.name}.h5") for spec in (POST, PRE, LONG)}
    yield opened
    for file in opened.values():
        file.close()


@pytest.fixture
def world(all_ranks):
    all_ranks.coding = EXACT  # a test before may have left another
    return all_ranks


def end_job(item, error):
    """Say what failed on this rank, past what captures output, and end it: mpirun ends the others."""
    item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture()
    os.write(2, f"{item.nodeid}: rank {MPI.COMM_WORLD.rank} failed alone\n{error}".encode())
    os._exit(1)
