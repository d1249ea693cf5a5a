"""Clients that go, ranks that are lost, queues that are full, and time that runs out."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from launch.serve.transport import Limits
from tests.kit.fake_service import running
from tests.launch.serve.conftest import connect, patient
from tests.launch.serve.test_openai import HI, said

ASKED = {"model": "slow", "prompt": "the", "max_tokens": 6}


def slow_of(service):
    return service.service.models["slow"]


def let(service, count):
    """Let the slow model make so many tokens."""

    async def release():
        for _ in range(count):
            slow_of(service).steps.release()

    service.do(release())


def cancelled(service):
    return [line["cancel"] for line in slow_of(service).lines if "cancel" in line]


def test_a_closed_stream_ends_its_request_and_no_other(own):
    with connect(own, _strict_response_validation=False) as client:
        going = client.completions.create(**ASKED, stream=True)
        let(own, 1)
        first = next(iter(going))
        staying = client.completions.create(**ASKED, stream=True)
        going.close()
        own.until(lambda: cancelled(own) == [first.id])
        let(own, 20)
        chunks = list(staying)

        assert "".join(chunk.choices[0].text for chunk in chunks) == said(6)
        assert cancelled(own) == [first.id]
        own.until(lambda: slow_of(own).journal.running == 0)


def test_a_client_that_goes_while_it_waits_for_a_whole_answer_ends_its_request(own):
    with connect(own, timeout=0.5) as client, pytest.raises(openai.APITimeoutError):
        client.completions.create(**ASKED)

    own.until(lambda: len(cancelled(own)) == 1 and slow_of(own).journal.running == 0)


def test_a_client_that_goes_while_it_is_in_the_queue_is_never_sent_and_ends_no_other(own):
    with connect(own) as client, ThreadPoolExecutor(2) as pool:
        running_ones = [pool.submit(client.completions.create, **ASKED) for _ in range(2)]
        own.until(lambda: slow_of(own).journal.running == 2)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).completions.create(**ASKED)
        own.until(lambda: slow_of(own).journal.waiting == 0)
        let(own, 12)

        assert [one.result().choices[0].text for one in running_ones] == [said(6)] * 2
        assert cancelled(own) == []
        assert len(slow_of(own).lines) == 2


def test_a_socket_that_is_cut_in_a_silent_stream_ends_its_request(own):
    """The service has nothing to send, so that no failed write can tell it."""
    body = b'{"model":"slow","prompt":"the","max_tokens":6,"stream":true}'
    host, port = own.url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as one:
        one.sendall(head.encode() + body)
        own.until(lambda: slow_of(own).journal.running == 1)

    own.until(lambda: len(cancelled(own)) == 1)


def test_a_stream_without_news_says_that_it_lives(own):
    with httpx.stream("POST", f"{own.url}/v1/completions", json=ASKED | {"stream": True}, timeout=10) as answer:
        lines = answer.iter_lines()
        assert answer.status_code == 200
        assert next(lines) == ": waiting"
        let(own, 6)
        rest = "\n".join(lines)

    assert rest.endswith("data: [DONE]\n")
    assert rest.count('"text": " on"') == 1


def test_a_full_queue_is_a_429_that_says_when_to_try_again_and_the_client_does(own):
    with connect(own) as client, ThreadPoolExecutor(6) as pool:
        others = [pool.submit(client.completions.create, **ASKED) for _ in range(5)]
        own.until(lambda: slow_of(own).journal.waiting == 3)
        complaint = "slow has 5 open requests: the ranks take 2 at once, 3 may wait: try again later"
        with pytest.raises(openai.RateLimitError, match=complaint) as caught:
            client.completions.create(**ASKED)
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
        assert caught.value.code == "queue_full"

        again = pool.submit(client.with_options(max_retries=3).completions.create, **ASKED)
        let(own, 36)

        assert [one.result().choices[0].text for one in (*others, again)] == [said(6)] * 6


def test_requests_go_on_in_the_same_stream_when_ranks_are_lost(own):
    with connect(own, _strict_response_validation=False) as client:
        stream = iter(client.completions.create(**ASKED, stream=True))
        let(own, 3)
        text = "".join(next(stream).choices[0].text for _ in range(3))
        own.do(slow_of(own).lose())
        own.service.models["slow"].state = "replanning"
        assert httpx.get(f"{own.url}/health").status_code == 503
        waiting = ThreadPoolExecutor(1).submit(connect(own).completions.create, **ASKED)
        own.until(lambda: slow_of(own).journal.waiting == 2)

        async def back():
            slow_of(own).start()

        own.do(back())
        let(own, 12)
        text += "".join(chunk.choices[0].text for chunk in stream)

        assert text == said(6)
        assert waiting.result(10).choices[0].text == said(6)
        sent = [line for line in slow_of(own).lines if "tokens" in line]
        assert sent[1] == sent[0] | {"said": [0, 1, 2]}


def test_a_request_that_the_ranks_are_lost_over_again_and_again_is_an_error_of_its_stream(own):
    with connect(own) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.completions.create, **ASKED)
        own.until(lambda: slow_of(own).journal.running == 1)

        async def restart():
            await slow_of(own).lose()
            slow_of(own).start()
            await asyncio.sleep(0)

        for _ in range(5):
            own.do(restart())

        with pytest.raises(openai.InternalServerError, match="lost 5 times over this request"):
            asked.result()


def test_a_model_that_is_no_more_refuses_at_once(own):
    slow_of(own).state, slow_of(own).reason = "failed", "no board is left"
    with connect(own) as client, pytest.raises(openai.InternalServerError, match="no board is left") as caught:
        client.completions.create(**ASKED)

    assert caught.value.status_code == 503
    assert caught.value.code == "model_failed"


@pytest.mark.parametrize(("limits", "what"), [({"first_s": 0.3}, "not begun"), ({"answer_s": 0.6}, "not at its end")])
def test_an_answer_that_takes_too_long_is_ended_on_the_ranks(texts, limits, what):
    with running(patient, texts, limits=Limits(**limits)) as service, connect(service) as client:
        if "answer_s" in limits:
            let(service, 1)
        with pytest.raises(openai.InternalServerError, match=what) as caught:
            client.completions.create(**ASKED)

        assert caught.value.status_code == 504
        service.until(lambda: len(cancelled(service)) == 1 and slow_of(service).journal.running == 0)


def test_what_fails_in_a_stream_is_an_event_of_it(texts):
    limits = Limits(answer_s=0.6)
    with running(patient, texts, limits=limits) as service, connect(service) as client:
        let(service, 2)
        stream = client.chat.completions.create(model="slow", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="not at its end after"):
            list(stream)


def test_a_body_that_is_too_long_or_never_ends_is_refused_with_both_numbers(own):
    long = httpx.post(f"{own.url}/v1/completions", json=ASKED | {"prompt": "the " * 30_000})

    assert (long.status_code, long.json()["error"]["code"]) == (413, "body_too_large")
    assert "100000" in long.json()["error"]["message"]

    host, port = own.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as one:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        assert b" 408 " in one.recv(100)


def test_an_image_that_is_too_large_is_refused_with_both_numbers(own, kept):
    url = f"{own.url}/v1/classifications"
    large = httpx.post(url, data={"model": "vit"}, files={"image": b"x", "file": b"x" * 1001})
    empty = httpx.post(url, data={"model": "vit"}, files={"image": b""})

    assert large.status_code == 413
    kept(large.json()["error"]["message"])
    assert empty.status_code == 400


def test_a_failed_embedding_cancels_the_others_of_its_request(own):
    narrow = own.service.models["narrow"]
    hold = asyncio.Event()
    narrow.pace = hold.wait
    with connect(own) as client, pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).embeddings.create(model="narrow", input=["the"] * 30)

    own.until(lambda: narrow.journal.waiting == 0)
    own.until(lambda: narrow.journal.running == 0)
    assert sum("cancel" in line for line in narrow.lines) == 1
