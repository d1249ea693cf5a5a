"""From a connection to a journal and back: bodies within limits, errors in OpenAI's shape, streams, clients that go.

A client that closes its connection ends its request at once, whether it waits for one answer or reads a stream.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from launch.serve.journal import OpenRequest, QueueFullError
from launch.serve.metrics import Metrics, Served, Watched

T = TypeVar("T")
MOST_PARTS = 64  # of a form
MOST_WHOLE = (1 << 31) - 1  # a number of tokens, where nothing else limits it
SHOWN = 100  # characters of what was sent
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


class ApiError(Exception):
    """A request that is not answered, in OpenAI's shape.

    Parameters
    ----------
    status
        Of HTTP.
    message
        One sentence or two, with both numbers.
    param
        The field that is wrong.
    code
        A word for programs.
    headers
        Of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
        self.table = {"error": {"message": _printable(message), "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        """Return it as a response."""
        return JSONResponse(self.table, self.status, self.headers)


def _printable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no body holds."""
    return text.encode(errors="replace").decode()


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
    async def ask(self, model: Served, line: Mapping[str, Any]) -> AsyncIterator[AsyncGenerator[dict[str, Any], None]]:
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

    async def _lines(
        self, model: str, request: OpenRequest, outcome: list[str]
    ) -> AsyncGenerator[dict[str, Any], None]:
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


def _refusal(line: Mapping[str, Any]) -> ApiError:
    """Return what says why there is no answer: of the ranks, who cannot use a line, or of the journal, who has none."""
    message = str(line["error"])
    return ApiError(503, message, code="ranks_lost") if line.get("lost") else ApiError(400, message, code="refused")


class EventStream(Response):
    """Server-sent events, until there are no more or the client is gone.

    The status is 200 from the first event on, or from the first sign of life: what fails before is an ordinary error,
    what fails behind it is an event.

    Parameters
    ----------
    events
        What stands behind each `data:`; closed at the end, however that comes.
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
        complaint = f"the body must be a JSON object, not {_kind(table)}"
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


class Fields:
    """The fields of a JSON body; null is as if a field were not there, and what nobody asks for is ignored.

    Parameters
    ----------
    table
        The JSON object.

    Raises
    ------
    ApiError
        From all methods, if a field is not what it must be.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = {name: value for name, value in table.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def value(self, name: str) -> Any:
        """Return a field as it is; None where it is not there."""
        return self._table.get(name)

    def text(self, name: str) -> str:
        """Return a string that must be there."""
        if name not in self:
            raise ApiError(400, f"{name} is missing, it must be a string", name, "missing_required_parameter")
        return check_text(self._table[name], name)

    def flag(self, name: str) -> bool:
        """Return a boolean; false where it is not there."""
        value = self._table.get(name, False)
        if not isinstance(value, bool):
            raise wrong(name, "a boolean", value)
        return value

    def number(self, name: str, least: float, most: float, otherwise: float) -> float:
        """Return a number between two, both allowed."""
        value = self._table.get(name, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(name, "a number", value)
        self._check_range(name, value, least, most)
        return float(value)

    def whole(self, name: str, least: int, most: int = MOST_WHOLE) -> int | None:
        """Return a whole number between two, both allowed; None where it is not there."""
        value = self._table.get(name)
        if value is None:
            return None
        if type(value) is not int:
            raise ApiError(400, f"{name} is {shown(value)}, must be a whole number", name, "invalid_type")
        self._check_range(name, value, least, most)
        return value

    def object(self, name: str) -> Fields:
        """Return an object's fields; none where it is not there."""
        value = self._table.get(name, {})
        if not isinstance(value, dict):
            raise wrong(name, "an object", value)
        return Fields(value)

    def strings(self, name: str, most: int) -> list[str]:
        """Return a string or a list of strings as a list, none of them empty."""
        value = self._table.get(name, [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise wrong(name, "a string or a list of strings", value)
        if len(texts) > most:
            raise ApiError(400, f"{name} has {len(texts)} strings, at most {most} are taken", name, "array_too_long")
        if "" in texts:
            raise ApiError(400, f"{name} has an empty string", name, "empty_string")
        return [check_text(text, name) for text in texts]

    def refuse(self, name: str, why: str, *allowed: Any) -> None:
        """Refuse a field that is there with another value than these, which change nothing."""
        value = self._table.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise ApiError(400, f"{name} is not supported: {why}", name, "unsupported_parameter")

    @staticmethod
    def _check_range(name: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            raise ApiError(400, f"{name} is {_short(value)}, must be {least} to {most}", name, "invalid_value")


def check_text(value: Any, name: str) -> str:
    """Return a string of whole characters.

    Raises
    ------
    ApiError
        If it is none, or has halves of surrogate pairs.
    """
    if not isinstance(value, str):
        raise wrong(name, "a string", value)
    with suppress(UnicodeEncodeError):
        value.encode()
        return value
    raise ApiError(400, f"{name} is not Unicode: it has half of a surrogate pair", name, "invalid_value")


def wrong(name: str, wanted: str, value: Any) -> ApiError:
    """Return what says that a field is of another kind than it must be."""
    return ApiError(400, f"{name} must be {wanted}, not {_kind(value)}", name, "invalid_type")


def shown(value: Any) -> str:
    """Return what a client has sent as a sentence can show it: of a long string the beginning, of a list its kind."""
    if isinstance(value, str):
        return value if len(value) <= SHOWN else f"{value[:SHOWN]} …"
    return _short(value) if type(value) in (int, float) else _kind(value)


def _kind(value: Any) -> str:
    """Return what JSON calls a value."""
    names = {
        bool: "a boolean", int: "a whole number", float: "a number", str: "a string", list: "a list", dict: "an object"
    }  # fmt: skip
    return names.get(type(value), "null")


def _short(value: float) -> str:
    """Return a number as a few characters: JSON has numbers of thousands of digits."""
    return str(value) if isinstance(value, float) or value.bit_length() < 80 else f"of {value.bit_length()} bits"
