"""The live page in a headless Chromium, before a small service that says what a test wants it to."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from websockets.sync.client import ClientConnection

from solver.plan.file import any_plan_from_json
from tests.launch.serve.chromium import NAME, Page, chromium
from tests.launch.serve.states import (
    BEGIN,
    CONVNET_PLAN,
    DECODER_PLAN,
    DECODER_PLAN_WITHOUT_PI_3,
    ENCODER_PLAN,
    ON_ONE,
    PIS,
    a_board,
    a_model,
    a_state,
)

FOLDER = Path(__file__).parents[3] / "launch/serve/page"
MOST_BYTES = 60 * 1024
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
ANSWER = ("Blue", " light", " is", " scattered", " more", " than", " red", ".")
LLAMA = a_model("llama-3.2-1b", "decoder", DECODER_PLAN)

IN_FULL = pytest.mark.thorough("of some twenty pages in Chromium four show that there is no error")
needs_chromium = pytest.mark.skipif(
    shutil.which(NAME) is None, reason=f"{NAME} is missing: apt-get install {NAME} (the .ci/run of this tree does)"
)


class Service:
    """What the page talks to: a state that a test sets, and answers that wait where a test wants them to."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.key: str | None = None
        self.refusal: str | None = None  # of every chat and embedding
        self.events_end = False  # /events tells one state and ends
        self.go_on = threading.Event()  # what a stream waits for after its second token
        self.go_on.set()
        self.asked: list[dict[str, Any]] = []
        self.left = threading.Event()  # a client went away within a stream
        routes = [
            Route("/events", self._events),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/v1/embeddings", self._embeddings, methods=["POST"]),
            Route("/v1/classifications", self._classifications, methods=["POST"]),
            Route("/", lambda request: FileResponse(FOLDER / "index.html")),
            Mount("/static", StaticFiles(directory=FOLDER)),
        ]
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes, middleware=[Middleware(_strict)]), log_level="critical")
        )
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self.go_on.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _refuses(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "a key is needed"}}, 401)

    async def _events(self, request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            while not self._server.should_exit:
                told = json.dumps(self.state)
                yield f"data: {told}\n\n"
                if self.events_end:
                    return
                for _ in range(20):
                    await asyncio.sleep(0.05)
                    if json.dumps(self.state) != told:
                        break

        return self._refuses(request) or StreamingResponse(stream(), media_type="text/event-stream")

    async def _chat(self, request: Request) -> Response:
        if self.refusal is not None:
            return JSONResponse({"error": {"message": self.refusal}}, 400)
        self.asked.append(await request.json())
        return self._tokens(lambda text: {"delta": {"content": text}})

    async def _completion(self, request: Request) -> Response:
        self.asked.append(await request.json())
        return self._tokens(lambda text: {"text": text})

    def _tokens(self, choice: Any) -> Response:
        async def stream() -> AsyncIterator[str]:
            try:
                for number, text in enumerate(ANSWER):
                    while number == 2 and not self.go_on.is_set():
                        await asyncio.sleep(0.01)
                    yield f"data: {json.dumps({'choices': [choice(text) | {'finish_reason': None}]})}\n\n"
                    await asyncio.sleep(0.02)
                for rank in self.state["models"][0]["ranks"]:
                    rank["compute_s"] += 1.0 + rank["rank"]
                yield f"data: {json.dumps({'choices': [choice('') | {'finish_reason': 'stop'}]})}\n\n"
                yield f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': len(ANSWER)}})}\n\n"
                yield "data: [DONE]\n\n"
            except asyncio.CancelledError:
                self.left.set()
                raise

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _embeddings(self, request: Request) -> Response:
        self.asked.append(await request.json())
        if self.refusal is not None:
            return JSONResponse({"error": {"message": self.refusal}}, 400)
        return JSONResponse({"data": [{"embedding": [1.0, 0.0, 0.0]}, {"embedding": [0.6, 0.8, 0.0]}]})

    async def _classifications(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append({"bytes": len(body), "type": request.headers["content-type"]})
        if "json" in request.headers["content-type"]:
            return JSONResponse({"data": [{"label": word, "scores": [0.1, 0.9]} for word in ("good", "bad")]})
        classes = [{"label": "tabby cat", "score": 0.81}, {"label": "tiger cat", "score": 0.12}]
        return JSONResponse({"data": [classes[0] | {"top5": classes}]})


def _strict(app: Any) -> Any:
    """Send the strict policy with every answer."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"content-security-policy", POLICY.encode()))
            await send(message)

        await app(scope, receive, send_with_policy)

    return wrapped


@pytest.fixture(scope="module")
def browser() -> Iterator[ClientConnection]:
    with chromium() as connection:
        yield connection


@pytest.fixture
def page(browser: ClientConnection, service: Service) -> Iterator[Page]:
    """Open a tab, which leaves before its service ends."""
    opened = Page(browser)
    opened.looks(1600, "light")
    yield opened
    opened.call("Page.navigate", url="about:blank")
    assert opened.errors == []


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(a_state(copy.deepcopy(LLAMA))) as running:
        yield running


def lose(service: Service, name: str) -> None:
    """Let a board be silent, and the plan be made without it."""
    state = copy.deepcopy(service.state)
    state["boards"] = [a_board(pi, alive=pi != name, seen_s=5.2 if pi == name else 0.4) for pi in PIS]
    state["models"][0] |= {"state": "replanning", "reason": f"{name} is silent for 5.2 s"}
    state["events"].append({"at": BEGIN + 60, "kind": "lost", "board": name, "text": f"{name} is silent for 5.2 s."})
    service.state = state


@pytest.mark.parametrize("plan", [DECODER_PLAN, DECODER_PLAN_WITHOUT_PI_3, ENCODER_PLAN, CONVNET_PLAN])
def test_the_plans_that_the_page_is_shown_are_such_as_the_planner_writes(plan):
    assert any_plan_from_json(json.dumps(plan)).devices == tuple(plan["devices"])


def test_the_page_is_small_and_needs_nothing_but_its_own_files():
    files = list(FOLDER.iterdir())
    page = (FOLDER / "index.html").read_text()

    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?! type=\"module\" src=)", page)
    for file in files:
        assert not re.search(
            r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|outerHTML|insertAdjacent|eval\(", file.read_text()
        )


@needs_chromium
def test_the_boards_show_their_shares_and_how_they_are(page, service, kept):
    page.open(service.url)
    page.shows("#connection", "Live")

    page.until("document.querySelectorAll('.card').length === 4")
    card = page.text(".card:nth-child(2)")
    for words in (
        "pi-1",
        "heard 0.4 s ago",
        "llama-3.2-1b",
        "has 53 %",
        "1.5 of 4 GiB",
        "56 °C",
        "62 %",
    ):
        assert words in card
    assert page.text("#sum-boards") == "4 alive"
    assert page.text("#sum-models") == "1 of 1 ready"
    bars = page.js("[...document.querySelectorAll('.bar')].map((bar) => bar.getAttribute('aria-label'))")
    kept(bars[0])
    assert [bar.split(":")[0] for bar in bars] == ["heads", "columns", "words"]
    widths = page.js("[...document.querySelector('.bar').children].map((part) => part.getBoundingClientRect().width)")
    assert widths[1] / sum(widths) == pytest.approx(18 / 32, abs=0.01)


@IN_FULL
@needs_chromium
def test_compute_wait_and_bytes_are_those_of_the_last_seconds(page, service):
    page.open(service.url)
    page.shows(".card:nth-child(1)", "Sends")
    service.state["models"][0]["ranks"][0] |= {"compute_s": 10.4, "wait_s": 4.2, "sent_bytes": 302 * 2**20}

    page.until("/computes [1-9]/.test(document.querySelector('.card').innerText)")
    assert re.search(r"computes \d+ %\s+waits \d+ %", page.text(".card:nth-child(1)"))
    assert re.search(r"Sends [\d.]+ [KM]iB/s\s+302 MiB in all", page.text(".card:nth-child(1)"))


@needs_chromium
def test_a_board_that_is_lost_turns_red(page, service):
    page.open(service.url)
    page.until("document.querySelectorAll('.card[data-state=alive]').length === 4")
    lose(service, "pi-3")

    page.shows(".card[data-state=lost]", "Lost: silent for 5.2 s")
    assert "pi-3" in page.text(".card[data-state=lost]")
    assert page.text("#sum-boards") == "3 of 4 alive"
    assert page.text(".plan .state") == "Planning again"
    assert page.text(".plan .reason") == "pi-3 is silent for 5.2 s"
    assert page.text("#events li:first-child strong") == "Lost"
    red = page.js("getComputedStyle(document.querySelector('.row .part:last-child')).backgroundColor")
    assert red == page.js("getComputedStyle(document.querySelector('.card[data-state=lost] .swatch')).backgroundColor")


@IN_FULL
@needs_chromium
def test_a_new_plan_appears_with_its_reason_and_nodes_stay(page, service):
    page.open(service.url)
    page.until("document.querySelectorAll('.card').length === 4")
    page.js("window.cardsBefore = [...document.querySelectorAll('.card, .row')]")
    service.state = service.state | {
        "models": [a_model("llama-3.2-1b", "decoder", DECODER_PLAN_WITHOUT_PI_3)],
        "events": [
            *service.state["events"],
            {"at": BEGIN + 63, "kind": "planned", "text": "llama-3.2-1b runs on pi-0, pi-1, pi-2"},
        ],
    }

    page.until("document.querySelectorAll('.legend li').length === 3")
    page.shows(".why", "llama-3.2-1b runs on pi-0, pi-1, pi-2")
    assert page.js("document.querySelector('.plan').classList.contains('changed')")
    assert page.js("document.querySelector('.bar').getAttribute('aria-label')").endswith("pi-2 5 of 32 heads")
    assert page.text("#events li:first-child strong") == "New plan"
    assert page.js("cardsBefore.every((node) => node.isConnected)")


@IN_FULL
@needs_chromium
def test_shares_that_move_while_a_plan_lives_say_why(page, service):
    line = "pi-1 went from 70 to 17.5 GFLOP/s 2 requests ago: saves 31 of 118 ms per request, costs 0 ms"
    page.open(service.url)
    page.until("document.querySelectorAll('.plan').length === 1")
    service.state = service.state | {"models": [service.state["models"][0] | {"replans": [{"line": line}]}]}

    page.shows(".why", line)


@IN_FULL
@needs_chromium
def test_ranks_that_share_a_board_are_added_up(page, service):
    """Where all ranks run on one machine, the model says which board each is on."""
    model = service.state["models"][0] | {"boards": ["laptop"] * 4}
    service.state = a_state(model, boards=[a_board("pi-0") | {"name": "laptop", "seen_s": None}])
    page.open(service.url)

    page.shows(".card", "has 100 %")
    assert "not heard of yet" in page.text(".card")
    assert "1.17 GiB in all" in page.text(".card")


@needs_chromium
def test_a_chat_streams_and_says_who_computed_it(page, service):
    page.open(service.url)
    page.until("!document.querySelector('#chat').hidden")
    service.go_on.clear()
    page.click("#chat-text")
    page.type("Why is the sky blue?")
    page.press("Enter")

    page.shows("#chat-log .assistant .body", "Blue light")
    assert page.js("document.querySelector('#chat-send').hidden")
    service.go_on.set()
    page.shows("#chat-log .assistant .body", "".join(ANSWER))
    page.shows("#chat-log .assistant", "8 tokens")
    page.shows("#chat-log .assistant .who", "Computed by pi-0 1.0 s, pi-1 2.0 s, pi-2 3.0 s, pi-3 4.0 s")
    assert page.js("document.querySelector('#chat-stop').hidden")
    assert service.asked[0]["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]
    page.type("And red?")
    page.press("Enter")
    # What an answer begins with comes after its request; the place for it stands there before.
    page.until("document.querySelectorAll('.assistant').length === 2")
    page.until("document.querySelectorAll('.assistant .body')[1].innerText.length > 0")
    assert [message["role"] for message in service.asked[1]["messages"]] == ["user", "assistant", "user"]


@IN_FULL
@needs_chromium
def test_a_chat_can_be_stopped(page, service):
    page.open(service.url)
    page.until("!document.querySelector('#chat').hidden")
    service.go_on.clear()
    page.click("#chat-text")
    page.type("Tell me all.")
    page.click("#chat-send")
    page.shows("#chat-log .assistant .body", "Blue light")
    page.click("#chat-stop")

    page.shows("#chat-log .assistant .quiet", "stopped")
    assert page.text("#chat-log .assistant .body") == "Blue light"
    assert page.js("document.querySelector('#chat-error').hidden")
    assert service.left.wait(10)


@IN_FULL
@needs_chromium
def test_a_new_chat_forgets_the_one_that_still_streams(page, service):
    page.open(service.url)
    page.until("!document.querySelector('#chat').hidden")
    service.go_on.clear()
    page.click("#chat-text")
    page.type("Tell me all.")
    page.press("Enter")
    page.shows("#chat-log .assistant .body", "Blue light")
    page.click("#chat-clear")
    page.until("document.querySelector('#chat-stop').hidden")
    service.go_on.set()
    page.type("Anew.")
    page.press("Enter")

    page.shows("#chat-log .assistant .body", "".join(ANSWER))
    assert service.asked[1]["messages"] == [{"role": "user", "content": "Anew."}]


@IN_FULL
@needs_chromium
def test_a_message_that_is_refused_can_be_sent_again(page, service):
    service.refusal = "the model reads 4096 tokens, these are 5000"
    page.open(service.url)
    page.until("!document.querySelector('#chat').hidden")
    page.click("#chat-text")
    page.type("Too long")
    page.press("Enter")

    page.shows("#chat-error", service.refusal)
    assert page.js("document.querySelector('#chat-text').value") == "Too long"
    service.refusal = None
    page.press("Enter")
    page.shows("#chat-log .assistant .body", "".join(ANSWER))
    assert service.asked[0]["messages"] == [{"role": "user", "content": "Too long"}]
    assert [error for error in page.errors if "400" not in error] == []
    page.errors.clear()


@IN_FULL
@needs_chromium
def test_a_stream_that_waits_for_boards_says_so_and_goes_on(page, service):
    page.open(service.url)
    page.until("!document.querySelector('#chat').hidden")
    service.go_on.clear()
    page.click("#chat-text")
    page.type("Go on")
    page.press("Enter")
    page.shows("#chat-log .assistant .body", "Blue light")
    lose(service, "pi-3")

    page.shows("#chat-log .assistant .quiet", "waiting: pi-3 is silent for 5.2 s")
    service.go_on.set()
    page.shows("#chat-log .assistant .body", "".join(ANSWER))


@IN_FULL
@needs_chromium
def test_a_model_without_a_chat_template_completes(page, service):
    service.state = a_state(a_model("llama-3.2-1b", "decoder", DECODER_PLAN, reads="text"))
    page.open(service.url)
    page.until("!document.querySelector('#chat').hidden")
    page.click("#chat-text")
    page.type("Once upon a time")
    page.press("Enter")

    page.shows("#chat-log .assistant .body", "".join(ANSWER))
    assert service.asked[0]["prompt"] == "Once upon a time"


@IN_FULL
@needs_chromium
def test_a_model_of_token_ids_is_offered_no_box_and_a_board_without_a_share_no_bar(page, service):
    service.state = a_state(a_model("bare", "decoder", ON_ONE, reads="token ids", boards=["pi-1"]))
    page.open(service.url)
    page.shows("#models .figures", "token ids alone: it came without a tokenizer")

    assert page.js("document.querySelector('#chat').hidden && document.querySelector('#embedding').hidden")
    assert page.text("#models .legend") == "pi-1 100 %"
    assert page.text("#boards").count("has ") == 1


@IN_FULL
@needs_chromium
def test_requests_in_flight_without_a_token_have_no_speed_yet(page, service):
    request = {"id": "cmpl-1", "model": "llama-3.2-1b", "tokens": 9, "seconds": 8.0, "tokens_per_s": 1.1}
    model = a_model("llama-3.2-1b", "decoder", DECODER_PLAN, tokens=0)
    service.state = a_state(model, requests=[request])
    page.open(service.url)
    page.shows("#sum-requests", "1 request")

    assert page.text("#sum-speed") == "\N{EN DASH}"


@IN_FULL
@needs_chromium
def test_two_sentences_are_compared(page, service):
    service.state = a_state(a_model("minilm", "encoder", ENCODER_PLAN))
    page.open(service.url)
    page.until("!document.querySelector('#embedding').hidden")
    page.click("#embedding button[type=submit]")

    page.shows("#embedding-answer", "0.600")
    assert service.asked[0]["model"] == "minilm"
    assert len(service.asked[0]["input"]) == 2
    assert page.js("document.querySelector('#chat').hidden && document.querySelector('#picture').hidden")


@IN_FULL
@needs_chromium
def test_a_classifier_says_what_both_sentences_are(page, service):
    service.state = a_state(a_model("mood", "encoder", ENCODER_PLAN))
    service.refusal = "model mood is not one that embeds texts: it is a classifier, ask /v1/classifications"
    page.open(service.url)
    page.until("!document.querySelector('#embedding').hidden")
    page.click("#embedding button[type=submit]")

    page.shows("#embedding-answer", "bad")
    assert re.search(r"good\s+90 %", page.text("#embedding-answer"))
    assert [error for error in page.errors if "400" not in error] == []
    page.errors.clear()


@needs_chromium
def test_a_picture_is_named(page, service):
    service.state = a_state(a_model("resnet50", "convnet", CONVNET_PLAN))
    page.open(service.url)
    page.until("!document.querySelector('#picture').hidden")
    path = page.picture("some")
    page.choose("#picture-file", path)
    page.until("!document.querySelector('#picture-view').hidden")
    page.click("#picture button[type=submit]")

    page.shows("#picture-answer", "tabby cat")
    assert "81 %" in page.text("#picture-answer")
    assert service.asked[0]["bytes"] > path.stat().st_size


@IN_FULL
@needs_chromium
def test_a_key_is_asked_for_and_kept_in_the_tab(page, service):
    service.key = "secret"
    page.open(service.url)
    page.until("!document.querySelector('#key-form').hidden")
    assert page.js("document.activeElement.id") == "key"
    for key, words in (("wrong", "The service does not take this key."), ("secret", "")):
        page.type(key)
        page.press("Enter")
        if words:
            page.shows("#key-error", words)

    page.shows("#connection", "Live")
    assert page.js("document.querySelector('#key-form').hidden && Object.values(sessionStorage).includes('secret')")
    assert page.js("localStorage.length") == 0
    assert [error for error in page.errors if "401" not in error] == []
    page.errors.clear()


@IN_FULL
@needs_chromium
def test_a_lost_connection_is_said_and_made_again(page, service):
    service.events_end = True
    page.open(service.url)
    page.shows("#connection", "Connection lost")
    assert page.js("document.body.classList.contains('stale')")
    service.events_end = False

    page.shows("#connection", "Live")
    assert not page.js("document.body.classList.contains('stale')")


@IN_FULL
@needs_chromium
def test_names_and_texts_are_never_markup(page, service):
    evil = "<img src=x onerror=alert(1)><b>bold</b>"
    board = a_board("pi-0") | {"name": evil}
    plan = DECODER_PLAN | {"devices": [evil, *PIS[1:]], "system": evil}
    event = {"at": BEGIN, "kind": "planned", "text": evil}
    request = {"id": evil, "model": evil, "tokens": 3, "seconds": 1.5, "tokens_per_s": 2.0}
    service.state = a_state(
        a_model(evil, "decoder", plan, reason=evil), boards=[board], events=[event], requests=[request]
    )
    page.open(service.url)

    page.shows(".card", evil)
    assert page.js("document.querySelectorAll('main img, main b').length") == 0
    assert evil in page.text("#requests")


@IN_FULL
@needs_chromium
def test_all_can_be_reached_by_the_keyboard(page, service):
    page.open(service.url)
    page.until("!document.querySelector('#chat').hidden")
    reached = []
    page.press("Tab")
    while page.js("document.activeElement !== document.body"):
        reached.append(page.js("document.activeElement.id || document.activeElement.className"))
        outline = page.js("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached
        page.press("Tab")

    assert reached[0] == "skip"
    for control in ("chat-text", "chat-most", "chat-clear", "chat-send"):
        assert control in reached
    unnamed = "[...document.querySelectorAll('input, select, textarea')].filter((e) => !e.labels.length).length"
    assert page.js(unnamed) == 0


def busy_state() -> dict[str, Any]:
    """Return a state with all there is to see: three models, a lost board, a throttled one, requests, events."""
    models = [
        a_model(
            "llama-3.2-1b", "decoder", DECODER_PLAN, state="replanning", reason="pi-3 is silent for 5.2 s", restarts=1
        ),
        a_model("minilm", "encoder", ENCODER_PLAN, tokens=0, requests=1204),
        a_model("resnet50", "convnet", CONVNET_PLAN, tokens=0, requests=17),
    ]
    boards = [
        a_board("pi-0"), a_board("pi-1", temperature_c=83.0, throttled=True),
        a_board("pi-2", free_bytes=0.1 * 2**30), a_board("pi-3", alive=False, seen_s=5.2),
    ]  # fmt: skip
    events = [
        {
            "at": BEGIN,
            "kind": "planned",
            "text": "llama-3.2-1b runs on pi-0, pi-1, pi-2, pi-3",
        },
        {"at": BEGIN + 900, "kind": "lost", "board": "pi-2", "text": "The rank on pi-2 ended (signal 9)."},
        {
            "at": BEGIN + 903,
            "kind": "restarted",
            "text": "llama-3.2-1b was started again on 4 boards; 2 requests go on.",
        },
        {"at": BEGIN + 904, "kind": "back", "board": "pi-2", "text": "pi-2 is back."},
        {"at": BEGIN + 1200, "kind": "lost", "board": "pi-3", "text": "pi-3 is silent for 5.2 s."},
    ]
    requests = [
        {"id": f"chatcmpl-{k}f3a9c2e17", "model": "llama-3.2-1b", "tokens": 31 * (k + 1), "seconds": 8.25 * (k + 1),
         "tokens_per_s": 3.76} for k in range(3)
    ]  # fmt: skip
    return a_state(*models, boards=boards, events=events, requests=requests)


@IN_FULL
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_is_cut_off_at_any_width(page, service, width, scheme):
    page.looks(width, scheme)
    calm = service.state
    service.state = busy_state()
    page.open(service.url)
    page.until("document.querySelectorAll('.card').length === 4 && !document.querySelector('#chat').hidden")
    page.click("#chat-text")
    page.type("Why is the sky blue?")
    page.press("Enter")
    page.shows("#chat-log .assistant", "8 tokens")
    page.click("#embedding button[type=submit]")
    page.shows("#embedding-answer", "0.600")
    page.shows("#chat-log .assistant .who", "Computed by")
    page.shows(".card", "computes")
    page.js("document.activeElement.blur()")
    page.picture(f"busy-{width}-{scheme}")

    assert page.js("document.documentElement.scrollWidth") <= width
    cut = """[...document.querySelectorAll('h2, h3, dd, dt, p, button')]
        .filter((node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline')
        .map((node) => node.innerText)"""
    assert page.js(cut) == []
    service.state = calm
    page.until("document.querySelector('#sum-boards').innerText === '4 alive'")
    page.picture(f"calm-{width}-{scheme}")
