"""A fork server and its clients as processes: a rank that is forked is as one that was started."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hepti_mpi.base import fork_client
from tests.kit.languages import make_tiny
from tests.kit.processes import has_ended

CLIENT = (sys.executable, "-E", "-S", "-s", fork_client.__file__)
LIGHT = "fork_server.LATE = ()"  # where no job is run, nothing need be imported for one
LINES = '{"tokens": [1, 2, 3], "max_tokens": 5}\n{"tokens": [7], "max_tokens": 2}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model")).path


class Server:
    """A fork server, and an agent's connection to it."""

    def __init__(self, process, name):
        self.process, self.name = process, name
        self.agent = self.meet()
        self.lines = self.agent.makefile()

    def meet(self, text="here"):
        """Connect as an agent."""
        agent = socket.socket(socket.AF_UNIX)
        agent.settimeout(60)
        agent.connect("\0" + self.name)
        said = json.dumps(text).encode()
        agent.sendall(fork_client.SIZE.pack(len(said)) + said)
        return agent

    def told(self):
        """Return the numbers of the next line."""
        return [int(word) for word in self.lines.readline().split()]

    def leave(self):
        """End the agent's connection."""
        self.lines.close()
        self.agent.close()


@contextmanager
def forking(before="pass"):
    """Start a fork server; `before` is run first."""
    name = f"hepti-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen()
        program = f"from hepti_mpi import fork_server; {before}; fork_server.main({str(listening.fileno())!r})"
        process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[listening.fileno()])
    server = Server(process, name)
    try:
        yield server
    finally:
        with suppress(OSError):
            server.agent.sendall(b"\n")
        process.wait(10)
        server.leave()


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
    while not has_ended(number):
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


def test_the_process_table_has_a_rank_by_its_number():
    says_its_name = "fork_server.rank_program.begin = lambda: print(open('/proc/self/comm').read())"
    with (
        forking(f"{LIGHT}; {says_its_name}") as server,
        client(server.name, env={**os.environ, "PMIX_RANK": "7"}) as process,
    ):
        out, _ = process.communicate(timeout=60)

    assert out.strip() == "hepti rank 7"


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
def test_for_another_user_nothing_is_forked(server):
    other = "import os, socket, sys; os.setuid(65534); way = socket.socket(socket.AF_UNIX)"
    ask = "way.settimeout(60); way.connect(chr(0) + sys.argv[1]); print(way.recv(1))"
    asked = subprocess.run([sys.executable, "-c", f"{other}; {ask}", server.name], capture_output=True, text=True)

    assert (asked.stdout, asked.stderr) == ("b''\n", "")


def test_with_its_server_its_ranks_end(model):
    with forking() as server, client(server.name, *serving(model)) as process:
        _, rank = server.told()
        process.stdin.write(LINES.splitlines(keepends=True)[0])
        process.stdin.flush()
        assert tokens(process.stdout.readline())
        server.process.kill()

        gone(rank)
        assert process.wait(10) == -signal.SIGKILL


def test_the_next_agent_hears_of_the_ranks_that_are_there_and_of_what_comes(model):
    with forking() as server, client(server.name, *serving(model)) as process:
        begun = server.told()
        server.leave()
        with server.meet() as second, second.makefile() as lines:
            assert lines.readline().split() == [str(number) for number in begun]
            process.communicate(LINES, timeout=60)
            assert lines.readline().split() == [str(number) for number in (*begun, 0)]
            second.sendall(b"\n")
            assert server.process.wait(10) == 0


def test_without_an_agent_it_ends_after_a_while_and_its_ranks_with_it(model):
    with forking(f"{LIGHT}; fork_server.KEPT_S = 0.3") as server, client(server.name, *serving(model)):
        _, rank = server.told()
        begin = time.monotonic()
        server.leave()

        assert server.process.wait(10) == 0
        assert time.monotonic() - begin >= 0.3
        gone(rank)


def test_it_ends_for_an_agent_that_would_have_started_another():
    with forking(LIGHT) as server, server.meet("there") as other:
        assert other.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            server.meet()
        assert server.process.wait(10) == 0


def test_it_ends_for_the_next_agent_when_what_it_has_imported_is_another_now(tmp_path):
    module = tmp_path / "imported_here.py"
    module.touch()
    with forking(f"import sys; sys.path.append({str(tmp_path)!r}); import imported_here") as server:
        with client(server.name, "--help") as process:
            assert process.wait(60) == 0  # its imports are done
            begun = server.told()
            assert server.told() == [*begun, 0]
        with server.meet() as same, same.makefile() as lines, client(server.name, "--help") as process:
            assert process.wait(60) == 0
            assert lines.readline().split()[0] == str(process.pid)
            assert lines.readline().split()[2] == "0"
        module.touch()
        with server.meet() as other:
            assert other.recv(1) == b""
        assert server.process.wait(10) == 0
