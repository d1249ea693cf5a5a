"""The service over HTTP: OpenAI's endpoints, health, metrics, events, and the page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from launch.api.body import Fields, check_text, shown
from launch.api.errors import ApiError
from launch.serve.chat import Chat, Completion, Endpoint
from launch.serve.encoders import FORM, Encoders, images_in, images_of
from launch.serve.journal import OpenRequest
from launch.serve.keys import Gate
from launch.serve.metrics import Metrics, Served, Watched
from launch.serve.texts import EncoderTexts, ImageTexts, LanguageTexts, ModelTexts
from launch.serve.transport import ClientGoneError, Desk, EventStream, Limits, parse_json, read_body, until_gone

PAGE = Path(__file__).parent / "page"
STATE_S = 1.0  # between two events of the state where nothing changes
TOGETHER_S = 0.1  # changes within it are told together
GONE = 499  # nginx's number for a client that is gone; nobody reads it
ASKED = "/v1/chat/completions, /v1/completions, /v1/embeddings, /v1/classifications, /v1/rerank and /v1/score"
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking")  # Jina's, Cohere's, llama.cpp's
SCORE_PATHS = ("/v1/score", "/score")  # vLLM's
METRICS = "text/plain; version=0.0.4; charset=utf-8"
Texts = TypeVar("Texts", LanguageTexts, EncoderTexts)
Handler = Callable[[Request], Awaitable[Response]]
PairAnswer = Callable[[Fields, Served, EncoderTexts], Coroutine[Any, Any, dict[str, Any]]]


class Service(Watched, Protocol):
    """What serves the models behind the app."""

    @property
    def changed(self) -> asyncio.Condition:
        """Notified whenever the state is another."""


def make_app(
    service: Service,
    texts: Mapping[str, ModelTexts],
    *,
    keys: Collection[str] = (),
    limits: Limits | None = None,
) -> ASGIApp:
    """Return the app.

    Parameters
    ----------
    service
        What serves the models.
    texts
        Of every model, what requests to it look like.
    keys
        One of which a client needs; none: requests for names of this machine alone are answered (`keys.check_address`
        says where it may listen).
    limits
        Of requests; None: the usual ones.
    """
    return Gate(_Api(service, texts, limits or Limits()).app(), keys)


class _Api:
    """All endpoints."""

    def __init__(self, service: Service, texts: Mapping[str, ModelTexts], limits: Limits) -> None:
        self._service = service
        self._texts = texts
        self._limits = limits
        self._metrics = Metrics(service)
        desk = Desk(service, limits, self._metrics)
        self._chat, self._completion, self._encoders = Chat(desk), Completion(desk), Encoders(desk)
        self._started = int(time.time())

    def app(self) -> Starlette:
        routes: list[BaseRoute] = [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/v1/chat/completions", _within(self._chats), methods=["POST"]),
            Route("/v1/completions", _within(self._completions), methods=["POST"]),
            Route("/v1/embeddings", _within(self._embeddings), methods=["POST"]),
            Route("/v1/classifications", _within(self._classifications), methods=["POST"]),
            *(Route(path, _within(self._rerank), methods=["POST"]) for path in RERANK_PATHS),
            *(Route(path, _within(self._score), methods=["POST"]) for path in SCORE_PATHS),
            Route("/health", self._health),
            Route("/metrics", self._tell_metrics),
            Route("/version", self._version),
            Route("/events", self._events),
        ]
        if PAGE.is_dir():
            routes += [Route("/", _page), Mount("/static", StaticFiles(directory=PAGE))]
        handlers: Any = {ApiError: _complain, HTTPException: _complain_of_http, Exception: _complain_of_us}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described(name) for name in self._service.models]})

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self._described(self._served(request.path_params["name"]).name))

    def _described(self, name: str) -> dict[str, Any]:
        found = {"id": name, "object": "model", "created": self._started, "owned_by": "hepti"}
        context = getattr(self._texts[name], "context", None)
        found |= {"kind": self._service.models[name].kind, "reads": self._texts[name].reads}
        return found | ({"max_model_len": context} if context else {})

    async def _chats(self, request: Request) -> Response:
        return await self._say(request, self._chat)

    async def _completions(self, request: Request) -> Response:
        return await self._say(request, self._completion)

    async def _say(self, request: Request, endpoint: Endpoint) -> Response:
        body = parse_json(await read_body(request, self._limits))
        model = self._served(body.text("model"))
        texts = self._of(model, LanguageTexts, "completes texts")
        question = await endpoint.question(body, model, texts)
        if question.streams:
            return EventStream(endpoint.pieces(question, texts), self._limits.ping_s)
        return JSONResponse(await until_gone(request.receive, endpoint.answer(question, texts)))

    async def _embeddings(self, request: Request) -> Response:
        body = parse_json(await read_body(request, self._limits))
        model = self._served(body.text("model"))
        texts = self._of(model, EncoderTexts, "embeds texts")
        if texts.labels:
            raise _not_for(model.name, "embeds texts: it is a classifier, ask /v1/classifications")
        return JSONResponse(await until_gone(request.receive, self._encoders.embed(body, model, texts)))

    async def _rerank(self, request: Request) -> Response:
        return await self._paired(request, self._encoders.rerank)

    async def _score(self, request: Request) -> Response:
        return await self._paired(request, self._encoders.score)

    async def _paired(self, request: Request, answer: PairAnswer) -> Response:
        body = parse_json(await read_body(request, self._limits))
        model = self._served(body.text("model"))
        texts = self._of(model, EncoderTexts, "scores pairs of texts")
        if not texts.labels:
            raise _not_for(model.name, "scores pairs of texts: it embeds, ask /v1/embeddings")
        return JSONResponse(await until_gone(request.receive, answer(body, model, texts)))

    async def _classifications(self, request: Request) -> Response:
        content = await read_body(request, self._limits)
        body = None
        if request.headers.get("content-type", "").startswith(FORM):
            name, images = await images_of(request, content)
        else:
            body = parse_json(content)
            name, images = body.text("model"), []
        model = self._served(name)
        texts = self._texts[name]
        if isinstance(texts, ImageTexts):
            given = images if body is None else images_in(body)
            work = self._encoders.classify_images(given, model, texts)
        elif isinstance(texts, EncoderTexts) and texts.labels and body is not None:
            work = self._encoders.classify_texts(body, model, texts)
        else:
            what = "classifies images" if body is None else "classifies"
            raise _not_for(name, what)
        return JSONResponse(await until_gone(request.receive, work))

    def _served(self, name: str) -> Served:
        try:
            return self._service.models[name]
        except KeyError:
            there = ", ".join(self._service.models)
            complaint = f"model {check_text(name, 'model')!r} is not served here, but {there}"
            raise ApiError(404, complaint, "model", "model_not_found") from None

    def _of(self, model: Served, kind: type[Texts], does: str) -> Texts:
        texts = self._texts[model.name]
        if not isinstance(texts, kind):
            raise _not_for(model.name, does)
        return texts

    async def _health(self, request: Request) -> Response:
        models: dict[str, list[str]] = {}  # that are not ready, by how they are
        for model in self._service.state()["models"]:
            if model["state"] != "ready":
                how = ", ".join(filter(None, [model["state"], model.get("reason")]))
                models.setdefault(how, []).append(model["name"])
        if models:
            reasons = [f"{', '.join(names)}: {how}" for how, names in models.items()]
            return ApiError(503, "; ".join(reasons), code="not_ready").response()
        return JSONResponse({"status": "ok"})

    async def _tell_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=METRICS)

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": self._service.state()["version"]})

    async def _events(self, request: Request) -> Response:
        return EventStream(self._states(), self._limits.ping_s)

    async def _states(self) -> AsyncGenerator[str, None]:
        """Yield the state at once, whenever it changes, and every second, until the service ends."""
        changed = self._service.changed
        while True:
            state = self._service.state()
            models = [{**model, "reads": self._texts[model["name"]].reads} for model in state["models"]]
            yield json.dumps({**state, "models": models, "requests": self._requests()})
            if state.get("ending"):
                return
            try:
                async with asyncio.timeout(STATE_S), changed:
                    await changed.wait()
                await asyncio.sleep(TOGETHER_S)
            except TimeoutError:
                pass

    def _requests(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [
            _progress(request, name, now)
            for name, model in self._service.models.items()
            for request in model.journal.open
        ]


def _progress(request: OpenRequest, model: str, now: float) -> dict[str, Any]:
    tokens = len(request.said)
    since = None if request.first_at is None else now - request.first_at
    speed = (tokens - 1) / since if since and tokens > 1 else None
    return {
        "id": request.id, "model": model, "tokens": tokens, "seconds": now - request.created, "tokens_per_s": speed
    }  # fmt: skip


def _within(handler: Handler) -> Handler:
    """Return a handler that ends in silence where the client is gone."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientGoneError:
            return Response(status_code=GONE)

    return handle


def _not_for(model: str, does: str) -> ApiError:
    return ApiError(400, f"model {model} is not one that {does}", "model", "model_not_supported")


async def _page(request: Request) -> Response:
    return FileResponse(PAGE / "index.html")


async def _complain(request: Request, error: ApiError) -> Response:
    return error.response()


async def _complain_of_http(request: Request, error: HTTPException) -> Response:
    path, taken = shown(request.url.path), (error.headers or {}).get("Allow")
    if error.status_code == 405:
        code, what = "method_not_allowed", f"{path} is asked by {taken}, not by {request.method}"
    else:
        code, what = "not_found", f"there is nothing at {path}; models are at /v1/models, questions at {ASKED}"
    return ApiError(error.status_code, what, code=code, headers=error.headers).response()


async def _complain_of_us(request: Request, error: Exception) -> Response:
    """Say that it is our fault, and nothing of how; the log has it."""
    return ApiError(500, "the service failed; its log says how", code="internal_error").response()
