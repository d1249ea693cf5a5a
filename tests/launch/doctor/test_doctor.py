"""What the doctor makes of answers; how it gets them is tested in the lab."""

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.base.sent import sent
from launch.doctor import probe as doctor_probe
from launch.doctor.ask import ask
from launch.doctor.findings import HostAnswer, examine, examine_hostfile, examine_pairs
from launch.start.hostfile import HostfileEntry
from solver.cluster import board
from solver.cluster.cluster import GIB
from tests.kit import inside

FACTS = {
    "python": "3.11.7",
    "executable": "/venv/bin/python",
    "machine": "aarch64",
    "packages": {"numpy": "2.4.6", "mpi4py": "4.1.2", "h5py": "3.13.0", "hepti": "0.1.0"},
    "code": "12345678",
    "cores": 4,
    "usable_cores": 4,
    "threads": {},
    "free_bytes": 3 * GIB,
    "interfaces": [{"name": "eth0", "running": True, "address": "10.0.0.1", "prefix": 24}],
    "temperature_c": 51.0,
    "throttled": 0,
    "lab_scale": 1.0,
}


WORKS = {"backend": "onnxruntime", "why": "it computes what numpy does", "missing": False}


def answer(host, **changes):
    facts = copy.deepcopy(FACTS)
    facts["interfaces"][0]["address"] = f"10.0.0.{1 + int(host[-1])}"
    facts["packages"].update(changes.pop("packages", {}))
    facts["interfaces"] += changes.pop("more_interfaces", [])
    facts.update(changes)
    return HostAnswer(host, True, mpi="mpirun (Open MPI) 5.0.11", daemon="/venv/bin/prted", facts=facts)


def cluster(**changes):
    return [answer("pi-0"), answer("pi-1"), answer("pi-2", **changes)]


def test_a_healthy_cluster_has_no_findings():
    assert examine(cluster()) == []


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"python": "3.9.2"}, "python"),
        ({"machine": "x86_64"}, "python"),
        ({"packages": {"numpy": "1.26.4"}}, "package"),
        ({"packages": {"mpi4py": None}}, "package"),
        ({"code": "87654321"}, "code"),
        ({"usable_cores": 1}, "binding"),
        ({"threads": {"OMP_NUM_THREADS": "16"}}, "threads"),
        ({"threads": {"OMP_NUM_THREADS": "16,2"}}, "threads"),
        ({"free_bytes": GIB // 10}, "memory"),
        ({"temperature_c": 84.0}, "temperature"),
        ({"throttled": 0x50005}, "throttling"),
        ({"more_interfaces": [{"name": "wlan0", "running": False, "address": "10.9.0.2", "prefix": 24}]}, "interface"),
        (
            {"more_interfaces": [{"name": "docker0", "running": True, "address": "172.17.0.1", "prefix": 16}]},
            "interface",
        ),
    ],
)
def test_each_fault_is_found_on_its_host_with_a_mend(changes, check, kept):
    (finding,) = examine(cluster(**changes))

    assert (finding.host, finding.check) == ("pi-2", check)
    kept(finding.problem)
    assert finding.mend


def test_unreached_hosts_and_missing_interpreters_are_told_apart():
    silent = HostAnswer("pi-1", reached=False, error="Permission denied (publickey).")
    bare = HostAnswer("pi-2", reached=True, error="bash: /venv/bin/python: No such file or directory")
    first, second = examine([answer("pi-0"), silent, bare])

    assert (first.check, second.check) == ("ssh", "interpreter")
    assert "Permission denied" in first.problem
    assert "No such file" in second.problem


def test_another_mpi_and_a_missing_daemon_are_found(kept):
    other = replace(answer("pi-1"), mpi="mpirun (Open MPI) 4.1.4", daemon="")
    version, daemon = examine([answer("pi-0"), other])

    kept(version.problem)
    assert "prted is not on the PATH" in daemon.problem


@pytest.mark.parametrize(
    ("missing", "why", "mend"),
    [
        (False, "onnxruntime 1.21.0 dies of SIGILL", "try another version of onnxruntime there"),
        (
            True,
            "onnxruntime and onnx are not installed",
            "pip install onnx onnxruntime here, then hepti install --hosts pi-1",
        ),
    ],
)
def test_a_board_that_computes_with_numpy_beside_others_is_found(missing, why, mend):
    odd = replace(answer("pi-1"), kernels={"backend": "numpy", "why": why, "missing": missing})
    (finding,) = examine([replace(answer("pi-0"), kernels=WORKS), odd])

    assert (finding.host, finding.check) == ("pi-1", "kernels")
    assert (finding.problem, finding.mend) == (f"computes with numpy: {why}", mend)
    assert len(examine([odd])) == (not missing), "without onnxruntime anywhere, numpy is a choice"


def test_a_host_is_asked_which_kernels_it_computes_with(monkeypatch, tmp_path):
    """By starting a program there, not by an import: the wheel may take the process down."""
    wheel = tmp_path / "onnxruntime" / "__init__.py"
    wheel.parent.mkdir()
    wheel.write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    told = ask("localhost", sys.executable, agent="", model="").kernels

    assert told["backend"] == "numpy"
    assert told["why"].endswith("dies of SIGILL")


def test_code_of_our_own_is_told_apart_though_its_version_is_the_same(monkeypatch, tmp_path):
    package = tmp_path / "of_our_own"
    package.mkdir()
    (package / "__init__.py").write_text("one = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor_probe, "OWN", ("of_our_own",))

    before = doctor_probe.code()
    (package / "__init__.py").write_text("one = 2")

    assert before != doctor_probe.code()
    assert len(before) == 8
    monkeypatch.setattr(doctor_probe, "OWN", ("nowhere_to_be_found",))
    assert doctor_probe.code() is None


def test_two_common_networks_ask_for_a_choice():
    wireless = [{"name": "wlan0", "running": True, "address": "10.9.0.2", "prefix": 24}]
    (finding,) = examine([answer("pi-0", more_interfaces=wireless), answer("pi-1", more_interfaces=wireless)])

    assert "10.0.0.0/24 and 10.9.0.0/24" in finding.problem
    assert "btl_tcp_if_include 10.0.0.0/24" in finding.mend


def test_hosts_without_a_common_network_cannot_work(kept):
    apart = answer("pi-1", interfaces=[{"name": "eth0", "running": True, "address": "10.7.0.2", "prefix": 24}])
    (finding,) = examine([answer("pi-0"), apart])

    kept(finding.problem)


def test_weights_are_compared_with_rank_0_s(kept):
    answers = [replace(answer(f"pi-{rank}"), fingerprint=word, model_bytes=GIB) for rank, word in enumerate("aba")]
    (finding,) = examine(answers, "m.h5")

    assert finding.host == "pi-1"
    kept(finding.problem)


def test_only_rank_0_needs_the_weights_file():
    there, absent = (replace(answer("pi-0"), fingerprint="a"), replace(answer("pi-0"), model_absent=True))
    other = replace(answer("pi-1"), model_absent=True)
    (finding,) = examine([absent, other], "m.h5")

    assert not examine([there, other], "m.h5")
    assert (finding.host, finding.check) == ("pi-0", "weights")
    assert "hepti install --hosts pi-0 --model m.h5" in finding.mend


@pytest.mark.parametrize(
    ("kind", "words"), [("an encoder", "--precision int8"), ("a language model", "--precision int4"), ("a network", "")]
)
def test_what_makes_a_model_smaller_in_memory_is_advised(kind, words):
    (finding,) = examine([replace(answer("pi-0"), fingerprint="a", model_kind=kind, model_bytes=20 * GIB)], "m.h5")

    assert (words or "add a host") in finding.mend
    assert "float16" not in finding.mend


def test_a_model_that_all_hosts_together_cannot_hold_is_found(kept):
    answers = [replace(answer(f"pi-{rank}"), fingerprint="a", model_bytes=20 * GIB) for rank in range(3)]
    (finding,) = examine(answers, "m.h5")

    kept(finding.problem)


def test_hostfiles_that_put_two_ranks_on_a_host_are_found():
    entries = [
        HostfileEntry("pi-0", 1),
        HostfileEntry("pi-1", 2),
        HostfileEntry("pi-2", None),
        HostfileEntry("pi-0", 1),
    ]
    found = {(finding.host, finding.check): finding.problem for finding in examine_hostfile(entries, {})}

    assert found.keys() == {("pi-0", "slots"), ("pi-1", "slots"), ("pi-2", "slots")}
    assert "2 times" in found["pi-0", "slots"]


def test_settings_that_bind_ranks_are_found():
    variables = {"PRTE_MCA_hwloc_default_binding_policy": "core"}
    (finding,) = examine_hostfile([HostfileEntry("pi-0", 1)], variables)

    assert finding.check == "binding"


def test_pairs_without_ssh_are_named_in_their_direction():
    reached = {"pi-0": ["pi-0", "pi-1", "pi-2"], "pi-1": ["pi-0"], "pi-2": ["pi-0", "pi-1"]}
    (finding,) = examine_pairs(["pi-0", "pi-1", "pi-2"], reached)

    assert finding.host == "pi-1"
    assert "cannot ssh to pi-2" in finding.problem


def test_the_probe_answers_one_object_with_every_fact():
    source = sent(Path(doctor_probe.__file__))
    run = subprocess.run([sys.executable, "-I", "-"], input=source, capture_output=True, text=True, check=True)

    assert json.loads(run.stdout).keys() == FACTS.keys()


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {}, 2000 << 20),
        ("0::/a/b", {"a/b/memory.max": "max\n", "a/memory.max": f"{300 << 20}\n"}, 250 << 20),
        ("9:cpu:/x\n8:memory:/a", {"memory/a/memory.limit_in_bytes": f"{80 << 20}"}, 30 << 20),
        ("0::/a", {"a/memory.max": f"{10 << 20}"}, 0),
    ],
)
def test_free_memory_is_what_the_tightest_cap_leaves(groups, files, expected, monkeypatch, tmp_path):
    """All groups use 100 MiB, of which 50 are cached files; the host has 2000 MiB available."""
    known = {
        "/proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {2000 << 10} kB\n",
        "/proc/self/cgroup": groups,
    }
    for name, text in files.items():
        folder = Path("/sys/fs/cgroup", name).parent
        known |= {f"/sys/fs/cgroup/{name}": text}
        for use in ("memory.current", "memory.usage_in_bytes"):
            known[f"{folder}/{use}"] = str(100 << 20)
        known[f"{folder}/memory.stat"] = f"inactive_file {50 << 20}\ntotal_inactive_file {50 << 20}\n"
    monkeypatch.setattr(board, "contents", lambda path: known.get(path, "").encode())

    assert board.free_bytes() == expected


def test_a_right_hostfile_is_written_from_a_wrong_one_of_hosts_that_answer(tmp_path):
    """Of this host, which needs no ssh; the lab has others."""
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    wrong.write_text("localhost\nlocalhost slots=4\n")

    done = inside.run(main, "hostfile", wrong, "--out", right)
    not_there = inside.run(main, "hostfile", wrong, "host.invalid", "--out", tmp_path / "none")

    assert done.returncode == 0, done.stderr
    assert right.read_text() == "localhost slots=1\n"
    assert not_there.returncode == 2
    assert "host.invalid" in not_there.stderr
    assert not (tmp_path / "none").exists()
