"""How many threads the environment allows, whatever a person has written there; and nobody is told what runs here."""

import os
import subprocess
import sys

import pytest

from hepti_mpi.__main__ import limit_threads
from solver.base.environment import omp_threads, thread_count

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


@pytest.mark.parametrize(
    ("text", "count"),
    [("4", 4), ("4,2", 4), (" 1 , 8", 1), *((text, None) for text in ("abc", "", "0", "-2", "²", ",4"))],
)
def test_the_first_number_of_a_list_counts_and_garbage_is_as_good_as_nothing(text, count, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", text)

    assert thread_count(text) == omp_threads() == count


def test_a_rank_takes_its_part_of_the_cores_where_the_environment_names_no_number(monkeypatch):
    """What a person has set stays as it is: OpenMP reads the list by itself."""
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    for name, text in zip(VARIABLES, ("", "abc", "4,2", "3"), strict=True):
        monkeypatch.setenv(name, text)

    limit_threads()

    assert [os.environ[name] for name in VARIABLES] == [str(cores), str(cores), "4,2", "3"]


@pytest.mark.parametrize("package", ["hepti_mpi", "weights", "launch.single"])
def test_onnxruntime_sends_no_telemetry(package, tmp_path):
    """Where CI or a test runs it sends none anyway, so nothing may say that this is one."""
    quieter = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "BUILD_BUILDID", "PYTEST_CURRENT_TEST", "ORT_DISABLE_TELEMETRY")
    environment = {name: value for name, value in os.environ.items() if name not in quieter}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    subprocess.run([sys.executable, "-c", f"import {package}, onnxruntime"], env=environment, check=True, timeout=120)

    assert not [*tmp_path.rglob("*onnxruntime*")]
