"""Bits by what the link carries: what a lane's coding decides, and what its messages say."""

import numpy as np
import pytest

from hepti_mpi.comm.adaptive import HEADER_BYTES, WINDOW, Adaptive, SendRate, fitting
from solver.plan.plan import STAGE_WIRES
from tests.kit.connections import connected

ROWS, WIDTH = 10, 64
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


def lane(rate=0.0):
    return Adaptive(np.copyto, lambda: rate)


def send(sender, receiver, x=X):
    """Bring x from one to the other; return what arrives, and the bytes of the message."""
    message, out = sender.encode(x), np.empty_like(x)
    received = receiver.message(out)
    received[: message.nbytes] = message
    receiver.decode(received, out)
    return out, message.nbytes


def batches(sender, count, seconds=0.0):
    for _ in range(count):
        sender.encode(X)
        if seconds:
            sender.worked(seconds, ROWS)
        sender.sent(ROWS)


def test_the_most_bits_that_keep_up_are_taken():
    """By hand: 100 numbers a row and 100 bytes/s; 32 bits take 4 s, 2 bits a quarter."""
    assert [fitting(100, 100, seconds) for seconds in (4, 3.99, 1, 0.8, 0.5, 0.25, 0.1)] == [32, 16, 8, 6, 4, 2, 2]


@pytest.mark.parametrize("wire", STAGE_WIRES)
def test_a_message_says_of_how_many_bits_it_is(wire):
    """Whatever the receiver sends itself; and what it was posted for and did not get is known."""
    sender, receiver = lane(), lane()
    sender.bits = wire.bits

    out, size = send(sender, receiver)

    assert size == HEADER_BYTES + ROWS * wire.row_bytes(WIDTH)
    assert receiver.spare_bytes == X.nbytes - ROWS * wire.row_bytes(WIDTH)
    assert np.abs(out - X).max() <= {32: 0, 16: 1e-2, 8: 2e-2, 6: 0.1, 4: 0.4, 2: 3}[wire.bits]


@pytest.mark.parametrize(("rate", "bits"), [(1e9, 32), (2 * 64 * ROWS / 0.1, 16), (64 * ROWS / 0.1, 8), (1, 2)])
def test_bits_change_after_a_window(rate, bits):
    """Rates that carry a batch of 10 rows of 64 numbers in the 0.1 s of the stage with so many bits, just."""
    sender = lane(rate * 1.001)

    batches(sender, WINDOW - 1, 0.1)
    assert sender.bits == 32
    batches(sender, 1, 0.1)
    assert sender.bits == bits


def test_bits_stay_where_nothing_is_known_of_the_link_or_the_stages():
    for sender, seconds in ((lane(0.0), 0.1), (lane(10.0), 0.0)):
        batches(sender, WINDOW, seconds)
        assert sender.bits == 32


def test_the_slowest_stage_is_known_all_round_and_forgotten_when_it_is_faster():
    """Rank 0 deals out and computes nothing: it hears of the slow second stage, and tells the first."""
    root, first, second = lane(), lane(1e9), lane(1e9)

    def round_trip(seconds):
        send(root, first)
        first.worked(1e-9, ROWS)
        send(first, second)
        second.worked(seconds, ROWS)
        send(second, root)
        for rank in (root, first, second):
            rank.sent(ROWS)
        return root._row_s

    assert round_trip(0.5) == pytest.approx(0.05, rel=0.06)
    round_trip(0.5)
    assert first._row_s == pytest.approx(0.05, rel=0.1)
    for _ in range(60):
        last = round_trip(0.1)
    assert last == pytest.approx(0.01, rel=0.06)


def test_only_connections_to_receivers_say_how_fast_the_link_is():
    """However busy another one is; and only if something was sent since the last look."""
    with connected() as (ends, send), connected() as (_, send_more):
        rate = SendRate({ends})
        send(1 << 16)
        send_more(1 << 20)

        assert rate() > 0
        send_more(1 << 20)
        assert rate() == 0
        assert SendRate(set())() == 0
