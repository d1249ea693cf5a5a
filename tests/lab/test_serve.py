"""A service on a lab: a cable that is cut in the middle of an answer, a service that is killed, and quotas."""

import os
import signal
import socket
from pathlib import Path

import pytest

from launch.lab.lab import load_lab
from launch.serve.supervisor import service_name
from tests.kit.fake_boards import marked
from tests.kit.languages import make_tiny
from tests.lab.conftest import lab_up, wait_until, write_cluster
from tests.lab.services import COLUMNS, PLANNED_GIB, serving

BOARDS = {"gflops": (13, 13, 10), "mbps": 940}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Three hosts with sshd."""
    with lab_up("serve", tmp_path_factory.mktemp("serve"), "--ssh", memory_gib=1, **BOARDS) as lab:
        yield lab


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model"), COLUMNS).path


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return what to plan for: two of the boards are needed."""
    path = tmp_path_factory.mktemp("planned") / "planned.toml"
    return "--cluster", write_cluster(path, memory_gib=PLANNED_GIB, **BOARDS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize("host", ["pi-0", "pi-1"])
def test_an_answer_goes_on_when_a_cable_is_cut_and_the_host_is_taken_in_again(lab, model, planned, cache, port, host):
    """Also rank 0's host."""
    with serving(lab, cache, port, "--model", model, *planned) as service:
        calm = "".join(service.tokens(model))
        pieces = []
        for piece in service.tokens(model):
            pieces.append(piece)
            if len(pieces) == 5:
                lab.lab("cut", host)
        assert "".join(pieces) == calm
        left = [name for name in ("pi-0", "pi-1", "pi-2") if name != host]
        # An answer that needs nothing of a host ends before its silence is found.
        assert wait_until(lambda: service.state()["models"][0]["boards"] == left, 120 / lab.scale)
        assert any(line.startswith(f"{host} has been silent") for line in service.said)
        lab.lab("mend", host)
        assert wait_until(lambda: service.state()["models"][0]["boards"] == ["pi-0", "pi-1"], 60 / lab.scale)
        assert wait_until(lambda: service.state()["models"][0]["state"] == "ready", 120 / lab.scale)
        assert "".join(service.tokens(model)) == calm


def test_a_service_logs_in_once_on_every_host_whoever_it_starts_there(lab, model, planned, cache, port):
    def log_ins():
        logs = [load_lab(lab.name).directory / "ssh" / host / "log" for host in ("pi-0", "pi-1", "pi-2")]
        return [log.read_text().count("Accepted publickey") for log in logs]

    before = log_ins()
    with serving(lab, cache, port, "--model", model, *planned) as service:
        assert "".join(service.tokens(model))  # agents, and mpirun
        assert log_ins() == [number + 1 for number in before]


def test_a_host_without_a_share_is_lost_and_back_unnoticed(lab, model, planned, cache, port):
    with serving(lab, cache, port, "--model", model, *planned) as service:
        assert service.state()["models"][0]["boards"] == ["pi-0", "pi-1"]
        lab.lab("cut", "pi-2")
        assert wait_until(lambda: not service.state()["boards"][2]["alive"], 30 / lab.scale)
        assert "".join(service.tokens(model))
        lab.lab("mend", "pi-2")
        assert wait_until(lambda: service.state()["boards"][2]["alive"], 60 / lab.scale)
        assert "".join(service.tokens(model))
        (table,) = service.state()["models"]
        assert (table["state"], table["restarts"], table["boards"]) == ("ready", 0, ["pi-0", "pi-1"])


def test_ranks_keep_their_host_s_quota(lab, model, planned, cache, port):
    with serving(lab, cache, port, "--model", model, *planned):
        ranks = marked(service_name(port))

        groups = [Path(f"/proc/{pid}/cgroup").read_text() for pid in ranks]
        assert all(f"/hepti-lab.{lab.name}/" in group for group in groups)
        for host in ("pi-0", "pi-1"):
            assert any(f"/hepti-lab.{lab.name}/{host}/" in group for group in groups)


def test_a_service_that_is_killed_leaves_no_rank_and_starts_again(lab, model, cache, port):
    with serving(lab, cache, port, "--model", model) as service:
        old = set(marked(service_name(port)))
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        with serving(lab, cache, port, "--model", model) as again:
            assert "".join(again.tokens(model))
            assert not old & set(marked(service_name(port)))
    assert wait_until(lambda: not marked(service_name(port)), 20)
