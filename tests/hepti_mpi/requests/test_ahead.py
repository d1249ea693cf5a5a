"""What a thread makes ahead comes in order, complaints and errors included."""

import threading

import pytest

from hepti_mpi.requests.ahead import Ahead
from hepti_mpi.requests.service_lines import Complaint


@pytest.mark.timeout(20)
def test_things_and_complaints_come_in_the_order_in_which_they_are_made():
    seen = []
    ahead = Ahead(lambda complaint: seen.append(str(complaint)))

    def make():
        for number in range(3):
            yield number
            ahead.complain(Complaint(f"after {number}"))

    for _ in range(2):
        seen.clear()
        for number in ahead.of(make()):
            seen.append(number)

        assert seen == [0, "after 0", 1, "after 1", 2, "after 2"]


@pytest.mark.timeout(20)
def test_the_next_is_made_while_one_is_worked_on():
    made = threading.Event()

    def make():
        yield 1
        made.set()
        yield 2

    things = Ahead(pytest.fail).of(make())

    assert next(things) == 1
    assert made.wait(10)
    assert list(things) == [2]


@pytest.mark.timeout(20)
def test_an_error_is_raised_when_it_is_its_turn():
    def make():
        yield 1
        raise FloatingPointError("no")

    things = Ahead(pytest.fail).of(make())

    assert next(things) == 1
    with pytest.raises(FloatingPointError):
        next(things)
