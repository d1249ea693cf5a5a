"""The journal alone: who waits, who is sent, what is told, and what happens when the ranks are lost."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.serve.journal import MOST_LOSSES, Journal, QueueFullError
from tests import sweeps


def ids(lines):
    return [line["id"] if "id" in line else f"-{line['cancel']}" for line in lines]


def told(request):
    """Return everything that a client has been told so far."""
    return [request._told.get_nowait() for _ in range(request._told.qsize())]


def submit(journal, *names):
    return [journal.submit({"id": name, "tokens": [1, 2]}) for name in names]


def token(name, number):
    return {"id": name, "token": number, "text": f" {number}"}


def test_requests_are_sent_in_their_order_as_many_as_the_ranks_take():
    journal = Journal(2, 10)
    submit(journal, "a", "b", "c")

    assert journal.wake.is_set()
    assert ids(journal.to_send()) == ["a", "b"]
    assert (journal.running, journal.waiting) == (2, 1)
    assert not journal.wake.is_set()
    assert journal.to_send() == []

    journal.take({"id": "b", "embedding": [1.0]})

    assert journal.wake.is_set()
    assert ids(journal.to_send()) == ["c"]


def test_a_client_hears_its_tokens_and_its_answer_and_nothing_of_others():
    journal = Journal(2, 10)
    a, b = submit(journal, "a", "b")
    journal.to_send()
    for line in (token("a", 5), token("b", 6), token("x", 7), {"id": "a", "text": " 5"}, token("a", 8)):
        journal.take(line)

    async def everything():
        return [line async for line in a.events()]

    assert asyncio.run(everything()) == [token("a", 5), {"id": "a", "text": " 5"}]
    assert a.said == [5]
    assert a.first_at >= a.created
    assert told(b) == [token("b", 6)]
    assert journal.open == (b,)


def test_a_request_without_an_id_gets_one_of_its_own():
    journal = Journal(2, 10)
    first, second = journal.submit({}), journal.submit({})

    assert first.id != second.id
    assert ids(journal.to_send()) == [first.id, second.id]


@pytest.mark.parametrize("ranks", ["are there", "are not there yet"])
def test_a_full_queue_says_how_many_there_are(ranks, kept):
    journal = Journal(1, 2)
    submit(journal, "a", "b", "c")
    if ranks == "are there":
        journal.to_send()

    with pytest.raises(QueueFullError) as caught:
        journal.submit({})
    kept(caught.value)


def test_a_cancelled_request_that_waits_is_never_sent():
    journal = Journal(1, 10)
    _, b, _ = submit(journal, "a", "b", "c")
    journal.to_send()
    b.cancel()
    journal.take({"id": "a", "text": ""})

    assert ids(journal.to_send()) == ["c"]
    assert told(b) == [{"id": "b", "finish_reason": "cancelled"}, None]


def test_a_cancelled_request_that_runs_is_ended_on_the_ranks_and_keeps_its_place_until_then():
    journal = Journal(1, 10)
    a, _ = submit(journal, "a", "b")
    journal.to_send()
    a.cancel()
    a.cancel()

    assert told(a) == [{"id": "a", "finish_reason": "cancelled"}, None]
    assert ids(journal.to_send()) == ["-a"]
    assert journal.to_send() == []

    journal.take(token("a", 3))
    journal.take({"id": "a", "finish_reason": "cancelled"})

    assert ids(journal.to_send()) == ["b"]
    assert told(a) == []


def test_to_cancel_what_has_its_answer_is_nothing():
    journal = Journal(1, 10)
    (a,) = submit(journal, "a")
    journal.to_send()
    journal.take({"id": "a", "text": ""})
    a.cancel()

    assert journal.to_send() == []
    assert told(a) == [{"id": "a", "text": ""}, None]


def test_what_lost_ranks_had_goes_first_and_on_behind_what_was_said():
    journal = Journal(2, 10)
    a, _, _ = submit(journal, "a", "b", "c")
    journal.to_send()
    journal.take(token("a", 5))
    journal.take(token("a", 6))
    journal.lost()
    journal.take(token("a", 7))  # of ranks that are no more

    assert (journal.running, journal.waiting) == (0, 3)
    assert journal.to_send() == [{"id": "a", "tokens": [1, 2], "said": [5, 6]}, {"id": "b", "tokens": [1, 2]}]

    journal.take(token("a", 7))
    journal.take({"id": "a", "text": " 5 6 7"})

    assert told(a) == [token("a", 5), token("a", 6), token("a", 7), {"id": "a", "text": " 5 6 7"}, None]


def test_what_was_cancelled_is_lost_with_the_ranks():
    journal = Journal(2, 10)
    a, b = submit(journal, "a", "b")
    journal.to_send()
    a.cancel()
    journal.lost()

    assert ids(journal.to_send()) == ["b"]
    assert journal.open == (b,)


def test_a_request_that_always_ends_the_ranks_is_given_up():
    journal = Journal(2, 10)
    bad, good = submit(journal, "bad", "good")
    for number in range(MOST_LOSSES):
        journal.to_send()
        journal.take(token("good", number))
        journal.lost()

    assert "5 times" in told(bad)[0]["error"]
    assert ids(journal.to_send()) == ["good"]
    assert good.losses == 1


def test_where_there_will_be_no_ranks_every_request_is_answered_so():
    journal = Journal(1, 10)
    requests = submit(journal, "a", "b")
    journal.to_send()
    journal.fail("no board is left")

    assert [told(request)[0]["error"] for request in requests] == ["no board is left"] * 2
    assert journal.open == ()


@settings(max_examples=sweeps.count(12, 200))
@given(st.lists(st.sampled_from(["submit", "send", "token", "end", "cancel", "lose"]), max_size=60), st.randoms())
def test_whatever_happens_every_token_is_told_once_and_in_order(steps, random):
    """The ranks count on from what was said; a client that waits reads 0, 1, 2 and so on."""
    journal, with_ranks, everyone = Journal(3, 1000), {}, []
    for step in steps:
        if step == "submit":
            everyone.append(journal.submit({}))
        elif step == "send":
            for line in journal.to_send():
                if "cancel" in line:
                    with_ranks.pop(line["cancel"])
                    journal.take({"id": line["cancel"], "finish_reason": "cancelled"})
                else:
                    with_ranks[line["id"]] = len(line.get("said", ()))
        elif step == "lose":
            with_ranks.clear()
            journal.lost()
        elif step == "cancel" and everyone:
            random.choice(everyone).cancel()
        elif with_ranks:
            name = random.choice(sorted(with_ranks))
            if step == "token":
                journal.take(token(name, with_ranks[name]))
                with_ranks[name] += 1
            elif step == "end":
                journal.take({"id": name, "new_tokens": with_ranks.pop(name)})

    assert journal.running <= 3
    for request in everyone:
        lines = told(request)
        numbers = [line["token"] for line in lines if line and "token" in line]
        assert numbers == list(range(len(numbers)))
        assert lines.count(None) <= 1
        if lines and lines[-1] is None:
            assert "token" not in lines[-2]
            assert lines[-2].get("new_tokens", len(numbers)) == len(numbers)
            assert request not in journal.open
        else:
            assert request in journal.open
