"""A job that answers standard input, for any number of ranks: what is there runs together, and questions overtake it.

The other end of standard input is a generator of lines: it is asked for the next one as soon as the last has been read,
also while the ranks compute, and sees what has been printed by then.
"""

import base64
import json
import threading
from contextlib import contextmanager
from queue import Queue

import numpy as np
import pytest

from hepti_mpi.__main__ import main
from hepti_mpi.engine.engine import Engine
from hepti_mpi.requests import inputs, outputs, pictures, service_lines
from hepti_mpi.requests.ahead import Ahead
from hepti_mpi.requests.service_lines import print_line
from hepti_mpi.session.network import NetworkKind
from tests import sweeps
from tests.kit import reference
from tests.kit.encoders import POST, PRE
from tests.kit.networks import check_answer, write_boards, write_classifier, write_photos
from tests.kit.sized import sized
from weights.synthesize import synthesize

LONGEST_S = 20
KINDS = ("encoder", "network")
PHOTOS = ("a.png", "b.jpg", "deep/c.png")
TOKENS = ([5, 6, 7], [8], [9] * 40, [3, 1], [2, 2, 2, 2], [11] * 7)


@pytest.fixture(scope="module")
def place(all_ranks, shared_folder):
    """Return a folder with weights files of an encoder, a vision transformer and a network, images, and boards."""
    path = shared_folder / "service"
    if all_ranks.rank == 0:
        write_photos(path / "photos")
        write_classifier(path / "sees.h5")
        for spec in (POST, PRE):
            synthesize(path / f"{spec.name}.h5", spec, 0)
        write_boards(path / "boards.toml", all_ranks.size)
    all_ranks.barrier()
    return path


class Client:
    """The other end of standard input and output; on rank 0 only."""

    def __init__(self):
        self.printed = Queue()
        self.errors = []
        self._held = {}  # by id: entered as soon as it is printed, and left as soon as one may go on
        self.all_made = threading.Event()  # all requests before the bad line

    def print(self, entry):
        print_line(entry)
        self.printed.put(entry)
        entered, left = self._held.pop(entry.get("id"), (None, None))
        if entered:
            entered.set()
            assert left.wait(LONGEST_S)

    def next(self):
        return self.printed.get(timeout=LONGEST_S)

    def rest(self):
        return [self.printed.get_nowait() for _ in range(self.printed.qsize())]

    @contextmanager
    def busy(self, name):
        """Rank 0 prints the answer to a request, which it is given, until this ends."""
        entered, left = self._held.setdefault(name, (threading.Event(), threading.Event()))
        yield entered
        left.set()


@pytest.fixture
def client(monkeypatch):
    client = Client()
    for module in (service_lines, outputs):
        monkeypatch.setattr(module, "print_line", client.print)
    complain = Ahead.complain
    monkeypatch.setattr(Ahead, "complain", lambda self, text: (complain(self, text), client.all_made.set()))
    return client


@pytest.fixture
def serve(place, world, monkeypatch, client):
    """Return what runs a job on all ranks with a generator of lines; on rank 0 its exit code."""

    def run(kind, lines, *more):
        def encoded():
            for line in lines:
                yield line if isinstance(line, bytes) else json.dumps(line).encode()

        for module in (inputs, pictures):
            monkeypatch.setattr(module, "read_lines", encoded)
        model = {"encoder": "post", "vision": "pre", "network": "sees"}[kind]
        words = ("--model", place / f"{model}.h5", "--cluster", place / "boards.toml", "--input", "-")
        backend = ["--backend", "numpy"] if kind != "network" else []
        code = main([*map(str, (*words, "--images", place / "photos", *more)), *backend])
        world.barrier()
        return code

    return run


def request(kind, name, number=0):
    if kind == "encoder":
        return {"id": name, "tokens": TOKENS[number]}
    return {"id": name, "image": PHOTOS[number]}


def check(kind, answer, place, number=0):
    """Compare an answer with the reference."""
    if kind == "network":
        check_answer(answer, place / "photos" / PHOTOS[number])
        return
    _, tensors = reference.load(place / "post.h5")
    hidden = reference.forward(POST, tensors, TOKENS[number])
    np.testing.assert_allclose(
        answer["embedding"], reference.head(POST, tensors, hidden)["embedding"], rtol=0, atol=1e-5
    )


def cancelled(name):
    return {"id": name, "finish_reason": "cancelled"}


@pytest.mark.sizes
@pytest.mark.parametrize("kind", KINDS)
def test_the_status_is_told_when_all_is_loaded_and_while_nothing_is_asked(kind, serve, client, place, world):
    """Nothing else wakes rank 0; it counts what was answered, and names the ranks that the plan has."""
    found = []

    def lines():
        yield {"status": "ready?"}
        found.append(client.next())
        yield request(kind, "a")
        found.append(client.next())
        yield {"status": 7}
        found.append(client.next())

    code = serve(kind, lines())

    if world.rank == 0:
        first, answer, then = found
        assert code == 0
        check(kind, answer, place)
        assert [(first["status"], first["requests"]), (then["status"], then["requests"])] == [("ready?", 0), (7, 1)]
        assert then["model"] == then["plan"]["model"]["name"]
        assert then["tokens"] == (3 if kind == "encoder" else 0)
        assert [(rank["rank"], rank["device"]) for rank in then["ranks"]] == [
            *enumerate(f"pi-{number}" for number in range(world.size))
        ]
        assert then["ranks"][0]["compute_s"] > first["ranks"][0]["compute_s"] == 0
        assert (then["replans"], then["replanned"]) == ([], 0)


LIVE, REPLICAS = ("--replan", "auto"), ("--system", "hepti-throughput")


@pytest.mark.parametrize(
    ("kind", "options"),
    sized(
        [("encoder", LIVE), ("network", ()), ("network", REPLICAS)]
        + sweeps.count(0, 1) * [("encoder", ()), ("network", LIVE)],
        3,
    ),
)
def test_a_status_tells_what_every_rank_did(kind, options, serve, client, place, world):
    """The first one asks them, and a later one has what they say, which is what the report says in the end."""
    found, names = [], ("compute_s", "wait_s", "sent_bytes", "received_bytes")

    def lines():
        for number in range(3):
            yield request(kind, number, number)
        answered = 0
        while answered < 3:
            answered += "seconds" in client.next()
        while not (found and all("compute_s" in rank for rank in found[-1]["ranks"])):
            yield {"status": len(found)}
            found.append(client.next())

    assert serve(kind, lines(), "--report", place / "report.json", *options) == 0

    if world.rank == 0:
        told = [{name: rank[name] for name in names} for rank in found[-1]["ranks"]]
        report = json.loads((place / "report.json").read_text())["per_rank"]
        assert told == [{name: rank[name] for name in names} for rank in report]
        assert sum(rank["compute_s"] for rank in told) > 0


@pytest.mark.parametrize(("kind", "options"), sized([("encoder", ()), ("network", ()), ("network", REPLICAS)], 2))
def test_questions_and_cancels_overtake_requests_that_wait(kind, options, serve, client, place, world):
    """What is cancelled while rank 0 is busy is not computed, and an id that nobody has is nothing."""

    def lines():
        with client.busy("a") as entered:
            yield request(kind, "a")
            assert entered.wait(LONGEST_S)
            for number in range(3):
                yield request(kind, number, number)
            yield request(kind, "last", 1)
            yield {"status": "busy"}
            for name in (0, 2, "nobody"):
                yield {"cancel": name}

    code = serve(kind, lines(), *options)

    if world.rank == 0:
        answer, *rest = client.rest()
        assert code == 0
        check(kind, answer, place)
        assert [entry["id"] for entry in rest if entry == cancelled(entry.get("id"))] in ([0, 2], [2, 0])
        before = [entry.get("status", entry.get("id")) for entry in rest]
        assert before.index("busy") < before.index("last")
        assert [name for name in before if name in (1, "last")] == [1, "last"]
        for entry in rest:
            if "seconds" in entry:
                check(kind, entry, place, 1)


@pytest.mark.sizes
@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_cancelled_while_it_runs_is_answered_so(kind, serve, client, place, world, monkeypatch):
    running, goes_on = threading.Event(), threading.Event()

    def waits(method):
        def run(self, *arguments, **options):
            result = method(self, *arguments, **options)
            running.set()
            assert goes_on.wait(LONGEST_S)
            return result

        return run

    if world.rank == 0:
        monkeypatch.setattr(NetworkKind, "_computed", waits(NetworkKind._computed))
        monkeypatch.setattr(Engine, "submit", waits(Engine.submit))

    def lines():
        yield request(kind, "a")
        assert running.wait(LONGEST_S)
        yield {"cancel": "a"}
        yield request(kind, "a")
        goes_on.set()

    code = serve(kind, lines())

    if world.rank == 0:
        first, second = client.rest()
        assert (code, first) == (0, cancelled("a"))
        check(kind, second, place)


def test_what_is_there_runs_together_and_is_answered_as_if_alone(serve, client, place, world, monkeypatch):
    """A bad line among them is told in its turn; what is more than 512 rows waits for the next batch."""
    batches, submit = [], Engine.submit

    def noted(self, batch, **options):
        batches.append([one.id for one in batch])
        submit(self, batch, **options)

    monkeypatch.setattr(Engine, "submit", noted)

    def lines():
        with client.busy("first") as entered:
            yield request("encoder", "first")
            assert entered.wait(LONGEST_S)
            for number in range(len(TOKENS)):
                yield request("encoder", number, number)
            for name in ("long", "longer"):
                yield {"id": name, "tokens": [1] * 300}
            yield b"bad"
            assert client.all_made.wait(LONGEST_S)

    code = serve("encoder", lines())

    if world.rank == 0:
        first, *rest = client.rest()
        assert code == 2
        assert batches == [["first"], [*range(len(TOKENS)), "long"], ["longer"]]
        assert [entry["id"] for entry in rest if "error" in entry] == [10]
        check("encoder", first, place)
        for number in range(len(TOKENS)):
            (answer,) = (entry for entry in rest if entry["id"] == number)
            check("encoder", answer, place, number)


@pytest.mark.parametrize("kind", ["vision", "network"])
def test_an_image_in_a_line_is_that_of_the_file(kind, serve, client, place, world):
    def lines():
        for name in PHOTOS[:2]:
            data = (place / "photos" / name).read_bytes()
            yield {"id": name, "image": name}
            yield {"id": name, "image_data": base64.b64encode(data).decode()}

    code = serve(kind, lines())

    if world.rank == 0:
        answers = client.rest()
        assert code == 0
        for named, sent in zip(answers[::2], answers[1::2], strict=True):
            if kind == "network":
                check_answer(sent, place / "photos" / sent["id"])
                assert sent["top5"] == named["top5"]
            else:
                np.testing.assert_allclose(sent["embedding"], named["embedding"], rtol=0, atol=1e-6)
