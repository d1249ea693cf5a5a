"""A service on a lab, as a person starts it."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.lab.conftest import ROOT

TOKENS = 200
# As it is planned for, no board holds the weights, which are 3.4 MiB, beside what every rank needs: the first two share
# them, and without the second the first and the third.
COLUMNS, PLANNED_GIB = 1500, 0.1515  # 155 MiB: one board needs 156.5, of two the larger share 153.5


class Service:
    """A service that runs."""

    def __init__(self, process, port):
        self.process, self.port = process, port
        self.said = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        self.said.extend(iter(self.process.stderr.readline, ""))

    def tokens(self, model):
        """Yield the pieces of an answer as they come."""
        body = {"model": model.stem, "prompt": "the cat", "max_tokens": TOKENS, "stream": True}
        body |= {"temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                word = line.decode().removeprefix("data: ").strip()
                if word and word != "[DONE]":
                    yield from (choice["text"] for choice in json.loads(word)["choices"])

    def state(self):
        """Return the state as the page sees it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/events", timeout=10) as events:
            return json.loads(events.readline().decode().removeprefix("data: "))


@contextmanager
def serving(lab, folder, port, *words):
    """Start a service on the lab; the block begins when it is ready."""
    command = [sys.executable, "-m", "launch", "serve", "--lab", lab.name, "--port", str(port), *map(str, words)]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "XDG_CACHE_HOME": str(folder)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        service = Service(process, port)
        assert process.stdout.readline().startswith("listening"), service.said
        with ThreadPoolExecutor(1) as reader:
            word = reader.submit(process.stdout.readline)
            while not word.done():
                failed = [model["reason"] for model in service.state()["models"] if model["state"] == "failed"]
                if failed:
                    process.terminate()  # it would serve errors for ever, and `word` never come
                assert not failed, (failed, service.said)
                time.sleep(0.2)
            assert word.result() == "ready\n", service.said
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
