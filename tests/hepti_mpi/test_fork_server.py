"""A fork server and its clients as processes: a rank that is forked is as one that was started."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from hepti_mpi.base import fork_client
from tests.commands.languages import make_tiny

CLIENT = (sys.executable, "-E", "-S", "-s", fork_client.__file__)
LINES = '{"tokens": [1, 2, 3], "max_tokens": 5}\n{"tokens": [7], "max_tokens": 2}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model")).path


class Server:
    """A fork server."""

    def __init__(self, process, name):
        self.process, self.name = process, name

    def told(self):
        """Return the numbers of the next line."""
        return [int(word) for word in self.process.stdout.readline().split()]


@contextmanager
def forking():
    """Start a fork server."""
    name = f"hepti-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen()
        command = [sys.executable, "-m", "hepti_mpi.fork_server", str(listening.fileno())]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[listening.fileno()]
        )
    try:
        yield Server(process, name)
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(scope="module")
def server():
    with forking() as server:
        yield server
    assert server.process.returncode == 0


@contextmanager
def client(name, *words, command=CLIENT, **options):
    """Start a client."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command, name, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def serving(model):
    return "generate", "--model", str(model), "--input", "-", "--cluster", "mixed4"


def tokens(text):
    return [json.loads(line)["new_tokens"] for line in text.splitlines()]


def gone(number):
    """Wait until a process has ended."""
    end = time.monotonic() + 10
    stat = Path(f"/proc/{number}/stat")
    while stat.exists() and ") Z " not in stat.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_forked_rank_answers_as_one_that_was_started(server, model):
    with client(server.name, *serving(model)) as forked:
        out, _ = forked.communicate(LINES, timeout=60)
    begun, ended = server.told(), server.told()
    started = subprocess.run(
        [sys.executable, "-m", "hepti_mpi", *serving(model)], input=LINES, capture_output=True, text=True, check=True
    )

    assert len(tokens(out)) == 2
    assert tokens(out) == tokens(started.stdout)
    assert begun[0] == forked.pid
    assert ended == [*begun, 0]
    assert forked.returncode == 0


def test_words_folder_environment_and_exit_code_are_the_client_s(server, model, tmp_path):
    (tmp_path / "empty.h5").write_bytes(b"")
    with client(server.name, "--model", "empty.h5", cwd=tmp_path) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "empty.h5 is not a weights file: " in err
    server.told(), server.told()

    (tmp_path / "here.h5").symlink_to(model)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with client(server.name, *serving("here.h5")[:5], cwd=tmp_path, env=environment) as process:
        process.communicate(LINES, timeout=60)
    assert process.returncode == 0
    assert list((tmp_path / "cache").rglob("*.toml")), "what was measured lies in the client's cache"
    server.told(), server.told()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_is_killed_ends_its_client_by_the_same_signal(server, model, number):
    with client(server.name, *serving(model)) as process:
        _, rank = begun = server.told()
        os.kill(rank, number)

        assert process.wait(10) == -number
        assert server.told() == [*begun, -number]


def test_with_its_client_a_rank_ends_even_one_that_stands_still(server, model):
    with client(server.name, *serving(model)) as process:
        _, rank = server.told()
        os.kill(rank, signal.SIGSTOP)
        process.terminate()

        gone(rank)
    with client(server.name, *serving(model)) as process:  # and of that end nothing is told
        out, _ = process.communicate(LINES, timeout=60)
        assert server.told()[0] == server.told()[0] == process.pid
        assert len(tokens(out)) == 2


def test_without_a_server_the_client_is_the_rank(model):
    with client("hepti-nobody", *serving(model)) as process:
        out, _ = process.communicate(LINES, timeout=60)

    assert process.returncode == 0
    assert len(tokens(out)) == 2


def test_of_another_installation_the_client_is_the_rank(server, model, tmp_path):
    copy = tmp_path / "fork_client.py"
    copy.write_text(Path(fork_client.__file__).read_text())
    with client(server.name, *serving(model), command=(*CLIENT[:-1], str(copy))) as process:
        out, _ = process.communicate(LINES, timeout=60)

    assert len(tokens(out)) == 2
    with client(server.name, *serving(model)) as process:
        assert server.told()[0] == process.pid  # the first that it tells of since then


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_for_another_user_nothing_is_forked(server, model):
    with socket.socket(socket.AF_UNIX) as way:
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            way.connect("\0" + server.name)
            os._exit(0 if way.recv(1) == b"" else 1)
        _, status = os.waitpid(child, 0)

    assert status == 0


def test_with_its_server_its_ranks_end(model):
    with forking() as server, client(server.name, *serving(model)) as process:
        _, rank = server.told()
        process.stdin.write(LINES.splitlines(keepends=True)[0])
        process.stdin.flush()
        assert tokens(process.stdout.readline())
        server.process.kill()

        gone(rank)
        assert process.wait(10) == -signal.SIGKILL
