"""What a rank can say of itself and its connections."""

import socket
from dataclasses import replace

import numpy as np
import pytest

from hepti_mpi.base.memory import give_back, own_bytes
from hepti_mpi.comm.tcp import OPEN_FILES, between_ranks
from hepti_mpi.kernels.products import NUMPY
from hepti_mpi.live import monitor
from hepti_mpi.live.monitor import Monitor
from solver.model.named import named_model

SPEC = named_model("bert-base")


@pytest.fixture
def connection():
    """Return both ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
        with here, there:
            yield here, there


def test_a_connections_bytes_are_those_that_were_sent(connection):
    here, there = connection
    watching = Monitor(SPEC, NUMPY)
    before = watching.flows()

    here.sendall(bytes(1 << 16))
    received = 0
    while received < 1 << 16:
        received += len(there.recv(1 << 16))
    carried = watching.flows()

    ends = here.getsockname()[:2], here.getpeername()[:2]
    assert carried[ends][0] - before[ends][0] == 1 << 16
    assert carried[ends[::-1]][0] == before[ends[::-1]][0]
    here.sendall(b"the sockets are as they were")


def test_a_connection_that_has_gone_is_left_out(connection):
    here, _ = connection
    watching = Monitor(SPEC, NUMPY)
    ends = here.getsockname()[:2], here.getpeername()[:2]
    assert ends in watching.flows()

    here.close()

    assert ends not in watching.flows()


def test_the_two_ends_of_a_connection_make_a_flow_each_way():
    a, b, c = ("10.0.0.1", 5), ("10.0.0.2", 6), ("10.0.0.9", 7)
    flows = {0: {(a, b): (100, 0.1), (a, c): (7, 1.0)}, 1: {(b, a): (300, 0.2)}, 2: {}}

    sent, busy_s = between_ranks(flows, 3)

    np.testing.assert_array_equal(sent, [[0, 100, 0], [300, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(busy_s, [[0, 0.1, 0], [0.2, 0, 0], [0, 0, 0]])


def test_a_probe_is_run_now_and_then(monkeypatch):
    monkeypatch.setattr(monitor, "PROBE_EVERY_S", 0.0)
    monkeypatch.setattr(monitor, "PROBE_S", 0.001)
    watching = Monitor(SPEC, NUMPY)

    assert 0 < watching.probe().product_s < 1
    assert watching.probe(every_s=60.0) is None  # rank 0, for which requests wait


def test_a_probe_is_one_product_where_others_had_the_core_for_longer_than_it_takes(monkeypatch):
    monkeypatch.setattr(monitor, "PROBE_S", 0.0)
    monkeypatch.setattr(monitor, "PROBE_EVERY_S", 0.0)

    assert 0 < Monitor(SPEC, NUMPY).probe().product_s < 10


def test_a_probe_unlike_the_last_one_is_repeated_at_once(monkeypatch):
    """The first, since nothing bears it out; then one in so long, until one differs, or the last was long ago."""
    now, product_s = 0.0, 0.01

    def product(x):
        nonlocal now
        now += product_s

    def took():
        """Return what probes measure until it is not time for one."""
        probes = iter(watching.probe, None)
        return [round(probe.product_s, 3) for probe in probes]

    monkeypatch.setattr(monitor.clock, "now", lambda: now)
    watching = Monitor(SPEC, replace(NUMPY, graph=lambda operations: product))
    now += monitor.PROBE_EVERY_S
    assert took() == [0.01, 0.01]
    now, product_s = now + monitor.PROBE_EVERY_S, 0.012
    assert took() == [0.012]
    now, product_s = now + monitor.PROBE_EVERY_S, 0.05
    assert took() == [0.05, 0.05]
    now += 10 * monitor.PROBE_EVERY_S
    assert took() == [0.05, 0.05]


def test_what_a_process_takes_and_frees_leaves_what_its_host_has_for_it(monkeypatch):
    """On a host where nobody else takes or frees anything: what others do is not this process's to say."""
    host, size = 8 << 30, 128 << 20
    monkeypatch.setattr(monitor, "free_bytes", lambda: host - own_bytes())
    give_back()  # what earlier tests have freed: it would be taken anew without a page more
    before, own = Monitor(SPEC, NUMPY).room(), own_bytes()

    taken = np.ones(size, np.uint8)
    held, meanwhile = own_bytes(), Monitor(SPEC, NUMPY).room()
    del taken
    give_back()

    assert held - own > 0.9 * size
    assert own_bytes() - own < 0.1 * size
    assert abs(meanwhile - before) < 0.1 * size
    assert abs(Monitor(SPEC, NUMPY).room() - before) < 0.1 * size


def test_looking_leaves_no_open_files_behind(connection):
    watching = Monitor(SPEC, NUMPY)
    before = len(list(OPEN_FILES.iterdir()))

    for _ in range(20):
        watching.flows()

    assert len(list(OPEN_FILES.iterdir())) == before
