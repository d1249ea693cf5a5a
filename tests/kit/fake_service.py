"""A service without ranks: it takes lines from the journals and answers them as rank 0 would."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from launch.serve.app import make_app
from launch.serve.journal import Journal

WORDS = ("the", " cat", " sleeps", " on", " the", " warm", " windowsill", " and", " it", " is")
EOS = 3


@dataclass
class FakeModel:
    """A model of one kind; its ranks answer while they are there.

    `pace` is awaited before every token or answer; `lines` is everything that the ranks got.
    """

    name: str
    kind: str
    journal: Journal
    pace: object = None
    lines: list = field(default_factory=list)
    state: str = "ready"
    reason: str | None = None

    def __post_init__(self):
        self.answering = {}
        self.steps = asyncio.Semaphore(0)  # in tests that go step by step
        self.ranks = None

    async def run(self):
        """Serve until cancelled; `lose` and `back` are of the ranks."""
        self.start()
        await asyncio.Event().wait()

    def start(self):
        self.ranks = asyncio.ensure_future(self._rank())

    async def lose(self):
        """Lose the ranks: what they were about to say is never heard."""
        for task in (self.ranks, *self.answering.values()):
            task.cancel()
        await asyncio.gather(self.ranks, *self.answering.values(), return_exceptions=True)
        self.answering.clear()
        self.journal.lost()

    async def _rank(self):
        while True:
            for line in self.journal.to_send():
                self.lines.append(line)
                if "cancel" in line:
                    task = self.answering.pop(line["cancel"], None)
                    if task is not None:
                        task.cancel()
                        self.journal.take({"id": line["cancel"], "finish_reason": "cancelled"})
                else:
                    self.answering[line["id"]] = asyncio.ensure_future(self._answer(line))
            await self.journal.wake.wait()

    async def _answer(self, line):
        answer = {"decoder": self._say, "encoder": self._encode, "convnet": self._look}[self.kind]
        await answer(line)
        self.answering.pop(line["id"], None)

    async def _step(self):
        await (asyncio.sleep(0) if self.pace is None else self.pace())

    async def _say(self, line):
        if line["tokens"][-1] == 0:
            self.journal.take({"id": line["id"], "error": "token 0 ends nothing"})
            return
        said, text, reason = list(line.get("said", ())), "", "length"
        stops = line["stop"]
        for token in said:
            text += WORDS[token % len(WORDS)]
        while len(said) < line.get("max_tokens", 1):
            await self._step()
            token = len(said)  # the words in their order
            piece = WORDS[token % len(WORDS)]
            said.append(token)
            told = {"id": line["id"], "token": token, "text": piece}
            if "logprobs" in line:
                top = [[token + n, -0.5 - n] for n in range(line["logprobs"])]
                told |= {"logprob": -0.5, "top": top}
            found = [at for stop in stops if (at := (text + piece).find(stop)) >= 0]
            if found:
                told["text"] = (text + piece)[len(text) : min(found)]
                reason = "stop"
            text += told["text"]
            self.journal.take(told)
            if found:
                break
        self.journal.take(
            {
                "id": line["id"], "text": text, "new_tokens": said, "finish_reason": reason, "seconds": 0.1,
                "first_s": 0.1, "tokens_per_s": 10.0, "prompt_tokens": len(line["tokens"]), "known": 2,
            }
        )  # fmt: skip

    async def _encode(self, line):
        await self._step()
        ids = line.get("tokens", ())
        if self.name == "classifier":
            found = {"label": "breeze", "scores": [0.25, 0.5, 0.25], "logits": [0.0, 0.7, 0.0]}
        else:
            found = {"embedding": [float(sum(ids)), *([0.1] * 39)]}
        self.journal.take({"id": line["id"], "tokens": len(ids), "seconds": 0.1, **found})

    async def _look(self, line):
        await self._step()
        if line["image_data"] == "bm9uZQ==":  # "none"
            self.journal.take({"id": line["id"], "error": "cannot read the image: it is no image"})
            return
        top = [{"label": "cat", "score": 0.75}, {"label": "board", "score": 0.25}]
        self.journal.take({"id": line["id"], "seconds": 0.1, **top[0], "top5": top})


class FakeService:
    """Serves fake models."""

    def __init__(self, models):
        self.models = {model.name: model for model in models}
        self.changed = asyncio.Condition()

    def state(self):
        return {
            "version": "0.1.0",
            "models": [
                {
                    "name": model.name, "kind": model.kind, "state": model.state, "reason": model.reason, "plan": None,
                    "tokens": 0, "requests": 0, "restarts": 1, "replanned": 2, "boards": ["pi-0", "pi-1"],
                    "ranks": [
                        {"rank": 0, "device": "fast", "compute_s": 1.5, "wait_s": 0.5, "sent_bytes": 100},
                        {"rank": 1, "device": "slow", "compute_s": 2.5, "received_bytes": 100},
                    ],
                }
                for model in self.models.values()
            ],
            "boards": [
                {
                    "name": "pi-0", "alive": True, "seen_s": 0.5, "free_bytes": 1 << 30, "total_bytes": 4 << 30,
                    "temperature_c": 55.0, "throttled": False, "cpu_percent": 12.5, "ranks": [],
                }
            ],
            "events": [],
        }  # fmt: skip


@dataclass
class Running:
    """A service that runs: its address, and its models in their event loop."""

    url: str
    service: FakeService
    loop: asyncio.AbstractEventLoop

    def do(self, work):
        """Run a coroutine in the service's loop; return what it makes."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def until(self, condition):
        """Wait until something is so in the service's loop."""

        async def wait():
            async with asyncio.timeout(10):
                while not condition():
                    await asyncio.sleep(0.005)

        self.do(wait())


@contextmanager
def running(make_models, texts, **how):
    """Run an app with fake models in a thread, on a free port."""
    ready, stop = threading.Event(), []
    found = []

    async def serve():
        service = FakeService(make_models())
        app = make_app(service, texts, **how)
        server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning", lifespan="off"))
        tasks = [asyncio.ensure_future(model.run()) for model in service.models.values()]
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        found.append(Running(f"http://127.0.0.1:{port}", service, asyncio.get_running_loop()))
        stop.append(server)
        ready.set()
        await serving
        for task in tasks:
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield found[0]
    stop[0].should_exit = stop[0].force_exit = True
    thread.join(20)
    assert not thread.is_alive()
