"""From a connection to a journal and back: bodies within limits, errors in OpenAI's shape, streams, clients that go.

A client that closes its connection ends its request at once, whether it waits for one answer or reads a stream.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from launch.api.body import Fields, kind_of
from launch.api.errors import ApiError
from launch.serve.journal import OpenRequest, QueueFullError
from launch.serve.metrics import Metrics, Served, Watched

T = TypeVar("T")
AnswerLines = AsyncGenerator[dict[str, Any], None]  # about one request, its answer last
# Of one request that are handed in together: enough to fill a batch, and others come in between.
TOGETHER = 16
AGAIN_S = 0.05  # between tries to get the next one into a full queue
MOST_PARTS = 64  # of a form
MOST_RETRY_S = 60  # that a client is asked to wait before it tries again
HELD_BACK = {"cache-control": "no-store", "x-accel-buffering": "no"}  # proxies keep no stream for themselves


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may take.

    Parameters
    ----------
    body_bytes, body_s
        Of a body, and until it is there.
    image_bytes, inputs
        Of an image as a file; texts or images in one request.
    first_s, answer_s
        Until the first token, waiting included; until the end.
    ping_s
        A stream says at least so often that it lives.
    """

    body_bytes: int = 16 << 20
    body_s: float = 30.0
    image_bytes: int = 10 << 20
    inputs: int = 2048
    first_s: float = 600.0
    answer_s: float = 3600.0
    ping_s: float = 15.0


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what a piece of work makes, which is cancelled when the client closes the connection.

    Raises
    ------
    ClientGoneError
        If it did.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _end(task, gone)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Desk:
    """Hands requests to the journals, follows them to their end within limits, and counts them.

    Parameters
    ----------
    watched
        What is served.
    limits
        Of time.
    metrics
        Counts.
    """

    def __init__(self, watched: Watched, limits: Limits, metrics: Metrics) -> None:
        self._watched = watched
        self.limits = limits
        self._metrics = metrics

    @asynccontextmanager
    async def ask(self, model: Served, line: Mapping[str, Any]) -> AsyncIterator[AnswerLines]:
        """Give the lines about a request, its answer last; left before that, the request ends on every rank.

        Raises
        ------
        ApiError
            Here, if the queue is full; from the lines, if the ranks refuse it, are no more, or need too long.
        """
        request = self._submit(model, line)
        outcome = ["cancelled"]
        try:
            async with aclosing(self._lines(model.name, request, outcome)) as lines:
                yield lines
        finally:
            request.cancel()
            self._metrics.ended(model.name, outcome[0], time.monotonic() - request.created)

    async def ask_all(
        self, model: Served, lines: Iterable[Mapping[str, Any]], one: Callable[[int, AnswerLines], Awaitable[T]]
    ) -> list[T]:
        """Return what `one` makes of the number of a line and of the lines about it; if one fails, all are cancelled.

        A full queue refuses all of them or none: once one is in, the others wait for room.

        Raises
        ------
        ApiError
            As `ask`, or as `one`.
        """
        numbered = iter(enumerate(lines))
        found: dict[int, T] = {}
        begun = asyncio.Event()
        give_up = time.monotonic() + self.limits.first_s

        async def work() -> None:
            for index, line in numbered:
                while index not in found:
                    try:
                        async with self.ask(model, line) as about:
                            begun.set()
                            found[index] = await one(index, about)
                    except ApiError as error:
                        if error.status != 429 or not begun.is_set() or time.monotonic() > give_up:
                            raise
                        await asyncio.sleep(AGAIN_S)

        refusal: ApiError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(work())
        except* ApiError as errors:
            refusal = _first(errors)  # what is raised here would be raised as a group
        if refusal is not None:
            raise refusal
        return [one_found for _, one_found in sorted(found.items(), key=lambda pair: pair[0])]

    def _submit(self, model: Served, line: Mapping[str, Any]) -> OpenRequest:
        for one in self._watched.state().get("models", ()):
            if one.get("name") == model.name and one.get("state") == "failed":
                reason = one.get("reason") or "its ranks cannot be started"
                raise ApiError(503, f"model {model.name} is not served any more: {reason}", "model", "model_failed")
        try:
            request = model.journal.submit(line)
        except QueueFullError as error:
            # The oldest will be the next that makes room, and has taken so long already.
            age = max((time.monotonic() - one.created for one in model.journal.open), default=0.0)
            retry = {"retry-after": str(min(max(math.ceil(age), 1), MOST_RETRY_S))}
            complaint = f"{model.name} has {error}: try again later"
            raise ApiError(429, complaint, code="queue_full", headers=retry) from None
        self._metrics.asked(model.name, len(line.get("tokens", ())))
        return request

    async def _lines(self, model: str, request: OpenRequest, outcome: list[str]) -> AnswerLines:
        last: float | None = None  # when the token before came
        async with aclosing(request.events()) as events:
            while True:
                limit = self.limits.first_s if last is None else self.limits.answer_s
                try:
                    async with asyncio.timeout(request.created + limit - time.monotonic()):
                        line = await anext(events)
                except TimeoutError:
                    outcome[0] = "timeout"
                    what = "not begun" if last is None else "not at its end"
                    raise ApiError(504, f"the answer is {what} after {limit:g} s", code="timeout") from None
                if "error" in line:
                    outcome[0] = "error"
                    raise _refusal(line)
                now = time.monotonic()
                if "token" not in line:
                    outcome[0] = line.get("finish_reason", "done")
                    yield line
                    return
                if last is None:
                    self._metrics.first(model, now - request.created)
                else:
                    self._metrics.next(model, now - last)
                last = now
                yield line


def _first(errors: BaseExceptionGroup[ApiError]) -> ApiError:
    """Return one of several errors."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ApiError)
    return error


def _refusal(line: Mapping[str, Any]) -> ApiError:
    """Return what says why there is no answer: of the ranks, who cannot use a line, or of the journal, who has none."""
    message = str(line["error"])
    return ApiError(503, message, code="ranks_lost") if line.get("lost") else ApiError(400, message, code="refused")


class EventStream(Response):
    """Server-sent events, until there are no more or the client is gone.

    The status is 200 from the first event on, or from the first sign of life: what fails before is an ordinary error,
    what fails after it is an event.

    Parameters
    ----------
    events
        What follows each `data:`; closed at the end, however that comes.
    ping_s
        Seconds of silence after which a comment is sent.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], ping_s: float) -> None:
        super().__init__(headers=HELD_BACK)
        del self.headers["content-length"]  # of no body
        self._events = events
        self._ping_s = ping_s
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        gone = asyncio.ensure_future(_gone(receive))
        event = self._next()
        try:
            while True:
                done, _ = await asyncio.wait({gone, event}, timeout=self._ping_s, return_when=asyncio.FIRST_COMPLETED)
                if gone in done:
                    return
                try:
                    data = event.result() if done else None
                except StopAsyncIteration:
                    break
                except ApiError as error:
                    if not self._started:
                        await error.response()(scope, receive, send)
                        return
                    await self._send(send, f"data: {json.dumps(error.table)}\n\n")
                    break
                await self._send(send, ": waiting\n\n" if data is None else f"data: {data}\n\n")
                if done:
                    event = self._next()
            await self._start(send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            await _end(gone, event)
            await self._events.aclose()

    def _next(self) -> asyncio.Task[str]:
        async def following() -> str:
            return await anext(self._events)

        # A task cannot end with StopIteration, but with StopAsyncIteration.
        return asyncio.ensure_future(following())

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def _send(self, send: Send, text: str) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": text.encode(errors="replace"), "more_body": True})


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return a request's body.

    Raises
    ------
    ApiError
        If it is too long, or takes too long.
    ClientGoneError
        If it ends before its end.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.body_s):
            # What is too long is read, too, but not kept: many clients look for an answer only when all is sent.
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limits.body_bytes:
                    body += chunk
    except TimeoutError:
        complaint = f"the body was not there after {limits.body_s:g} s, only {size} bytes of it"
        raise ApiError(408, complaint, code="body_timeout") from None
    except ClientDisconnect:
        raise ClientGoneError from None
    if size > limits.body_bytes:
        complaint = f"the body has {size} bytes, at most {limits.body_bytes} are taken"
        raise ApiError(413, complaint, code="body_too_large")
    return bytes(body)


def parse_json(body: bytes) -> Fields:
    """Return the fields of a body.

    Raises
    ------
    ApiError
        If it is no JSON object.
    """
    try:
        table = json.loads(body, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        complaint = f'the body is not JSON at {where}: send an object like {{"model": …}}'
    except UnicodeDecodeError as error:
        complaint = f"the body is not {error.encoding.upper()} at byte {error.start}"
    except RecursionError:
        complaint = "the body is nested too deeply"
    except ValueError:  # which is all that Python refuses besides
        complaint = f"the body has a number of more than {sys.get_int_max_str_digits()} digits"
    else:
        if isinstance(table, dict):
            return Fields(table)
        complaint = f"the body must be a JSON object, not {kind_of(table)}"
    raise ApiError(400, complaint, code="invalid_json")


def _refuse_constant(name: str) -> None:
    raise ApiError(400, f"the body is not JSON: {name} is no number", code="invalid_json")


async def parse_form(request: Request, body: bytes) -> FormData:
    """Return the parts of a form; its files lie in memory.

    Raises
    ------
    ApiError
        If it is none.
    """

    class InMemory(MultiPartParser):
        spool_max_size = len(body) + 1

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body

    parser = InMemory(request.headers, chunks(), max_files=MOST_PARTS, max_fields=MOST_PARTS)
    try:
        return await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ApiError(400, f"the form cannot be read: {reason}", code="invalid_form") from None


async def files_of(form: FormData, names: Sequence[str]) -> list[bytes]:
    """Return the contents of a form's files with one of these names, in their order."""
    return [await value.read() for name, value in form.multi_items() if name in names and isinstance(value, UploadFile)]
