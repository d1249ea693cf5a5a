"""`python -m launch serve`: what a person types and sees."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from launch.base import shell
from launch.doctor.room import check_ranks
from launch.lab.down import machine_cgroups
from launch.lab.lab import Lab, lab_name, load_lab, plan_lab, running
from launch.lab.up import brought_up, require_tools
from launch.start.hostfile import read_hostfile
from launch.start.mpirun import need_mpirun
from launch.watch.agent import SHARED_MEMORY, sweep
from launch.watch.outside import enter_command, join_commands
from launch.watch.site import Site
from launch.watch.terminal import watch
from solver.base.environment import install
from solver.base.errors import HeptiError
from solver.base.stopping import handled_by
from solver.cluster.named import find_cluster

if TYPE_CHECKING:
    import uvicorn

    from launch.serve.supervisor import Supervisor

MOST_WAITING = 64
PORTS = 65535
SHUTDOWN_S = 3  # for clients to read the ends of their streams
EXAMPLE = """\
examples:
  hepti serve --np 2 --model qwen3.h5              # on this machine
  hepti serve --hostfile pis --model qwen3.h5 --model minilm.h5
  hepti serve --lab mixed4 --model minilm.h5       # as root: on a virtual cluster
  hepti serve --watch                              # in another terminal
"""
UNIT = """\
[Unit]
Description=Hepti: {models}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
WorkingDirectory={folder}
ExecStart={command}
# The service ends its ranks on all boards itself.
KillMode=mixed
TimeoutStopSec=30
Restart=on-failure
RestartSec=5
# Bad usage or input: to start again would not help.
RestartPreventExitStatus=2

[Install]
WantedBy=multi-user.target
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="a service over HTTP that survives its boards",
        description="Serve models over HTTP, as OpenAI's API has it; boards may come and go.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hostfile", type=Path, metavar="F", help="boards, one rank each")
    where.add_argument("--lab", metavar="CLUSTER", help="a lab; one that is not up is brought up, and down at the end")
    where.add_argument("--np", type=int, default=1, metavar="N", help="ranks on this machine (default: %(default)s)")
    text = "a weights file, at the same place on every board; may be repeated"
    parser.add_argument("--model", type=Path, action="append", default=[], metavar="M.h5", help=text)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (default: %(default)s)")
    parser.add_argument("--key-file", type=Path, metavar="F", help="keys, one a line, of which a client needs one")
    text = "language models: chats that are answered together (default: 1)"
    parser.add_argument("--sequences", type=int, metavar="B", help=text)
    text = "language models: tokens of a prompt and its answer (default: what generate has)"
    parser.add_argument("--context", type=int, metavar="C", help=text)
    text = "what to plan for: a file, or a ready one (default: the boards are measured, once a model)"
    parser.add_argument("--cluster", metavar="CLUSTER.toml|NAME", help=text)
    text = "requests that may wait, of each model (default: %(default)s)"
    parser.add_argument("--most-waiting", type=int, default=MOST_WAITING, metavar="N", help=text)
    parser.add_argument("--print-unit", action="store_true", help="print a systemd unit for this, and do nothing")
    text = "serve nothing: show the service that runs at --host and --port, live, as its page does"
    parser.add_argument("--watch", action="store_true", help=text)
    parser.set_defaults(function=_run)


def _run(options: argparse.Namespace) -> int:
    for name, least in (("np", 1), ("port", 0), ("sequences", 1), ("context", 1), ("most_waiting", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise HeptiError(f"--{name.replace('_', '-')} is {value}, must be at least {least}")
    if options.hostfile is None and options.lab is None:
        check_ranks(options.np)
    if options.port > PORTS:
        raise HeptiError(f"--port is {options.port}, the highest is {PORTS}")
    if options.watch:
        return _watch(options)
    if not options.model:
        raise HeptiError("give --model M.h5 to serve it, or --watch to see a service that runs")
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise HeptiError(f"serve needs {error.name}, which is not installed: {install('serve')}") from error
    need_mpirun()
    return _serve(options)


def _watch(options: argparse.Namespace) -> int:
    from launch.serve.keys import read_keys

    if options.model:
        raise HeptiError("--watch shows a service that runs: leave out --model, and give it in another terminal")
    keys = read_keys(options.key_file)
    watch(f"http://{_in_address(options.host)}:{options.port}", keys[0] if keys else None, Console(highlight=False))
    print("the service has ended")
    return 0


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _serve(options: argparse.Namespace) -> int:
    from launch.serve.app import make_app
    from launch.serve.keys import VARIABLE, check_address, read_keys
    from launch.serve.served import served_file
    from launch.serve.supervisor import Supervisor, service_name
    from launch.serve.texts import LanguageTexts, read_texts

    files = [served_file(path) for path in options.model]
    twice = [file.name for file in files if [other.name for other in files].count(file.name) > 1]
    if twice:
        raise HeptiError(f"two models are called {twice[0]}: give each file its own name")
    texts = {file.name: read_texts(file.path, options.context) for file in files}
    if not any(isinstance(own, LanguageTexts) for own in texts.values()):
        for option, value in (("context", options.context), ("sequences", options.sequences)):
            if value is not None:
                raise HeptiError(f"--{option} {value} is for language models, {', '.join(texts)} is none: leave it out")
    cluster = None if options.cluster is None else find_cluster(options.cluster)
    keys = read_keys(options.key_file)
    check_address(options.host, keys)
    if options.print_unit:
        if options.hostfile is not None:
            _boards(options.hostfile)
        print(_unit(options), end="")
        if keys and options.key_file is None:
            print(f"note: {VARIABLE} is not in the unit: give --key-file", file=sys.stderr)
        return 0
    with _listening(options.host, options.port) as listener, _site(options) as site:
        if cluster is not None:
            cluster.first(site.ranks, options.cluster)
        port = listener.getsockname()[1]

        def make() -> tuple[Supervisor, object]:
            supervisor = Supervisor(
                site, files, service_name(port), cluster=cluster, sequences=options.sequences,
                context=options.context, most_waiting=options.most_waiting,
            )  # fmt: skip
            app = make_app(supervisor, texts, keys=keys)
            address = f"http://{_in_address(options.host)}:{port}"
            print(f"listening on {address}; loading {', '.join(supervisor.models)}", flush=True)
            return supervisor, app

        try:
            told = asyncio.run(_until_told(make, listener))
        finally:
            # Agents and ranks that were ended in their first moments have removed nothing.
            sweep(SHARED_MEMORY)
    if told is not None:
        signal.raise_signal(told)  # what waits for us learns how we ended
    return 0


async def _until_told(make: Callable[[], tuple[Supervisor, object]], listener: socket.socket) -> int | None:
    """Serve until a signal comes; return its number.

    What serves is made here: a signal that came before it is waited for would leave its folder there.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    def take(number: int) -> None:
        if not told.done():  # a person presses Ctrl-C again
            told.set_result(number)

    def tell(number: int, _: object) -> None:
        loop.call_soon_threadsafe(take, number)

    with handled_by(tell):
        supervisor, app = make()
        server = _server(app)
        running_models = asyncio.create_task(supervisor.run())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        telling = asyncio.create_task(_tell(supervisor))
        try:
            ends: set[asyncio.Future[Any]] = {told, running_models, serving, telling}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (running_models, telling):
                if task.done():
                    task.result()
        finally:
            telling.cancel()
            running_models.cancel()
            await asyncio.gather(running_models, telling, return_exceptions=True)
            server.should_exit = True
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * SHUTDOWN_S):
                    await serving
    return told.result() if told.done() else None


def _server(app: object) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """Signals are ours: ranks are to be ended, too."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=SHUTDOWN_S,
    )  # fmt: skip
    return Server(config)


async def _tell(supervisor: Supervisor) -> None:
    """Print a line where all models are ready, and what happens to boards and ranks on standard error.

    Raises
    ------
    HeptiError
        If no model can be served.
    """
    was_ready, last = False, 0
    while True:
        state = supervisor.state()
        if all(model["state"] == "failed" for model in state["models"]):
            raise HeptiError("; ".join(f"{model['name']}: {model['reason']}" for model in state["models"]))
        for event in state["events"]:
            if event["number"] > last:
                print(event["text"], file=sys.stderr, flush=True)
                last = event["number"]
        ready = all(model["state"] == "ready" for model in state["models"])
        if ready and not was_ready:
            print("ready", flush=True)
        was_ready = ready
        async with supervisor.changed:
            await supervisor.changed.wait()


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Give a socket that listens; there is nothing at a port that is taken, so nothing else is touched."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        # Of a port that is taken, `create_server` says the address once more.
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise HeptiError(f"cannot listen on {host}, port {port}: {why}: give another --port") from error
    with listener:
        yield listener


@contextmanager
def _site(options: argparse.Namespace) -> Iterator[Site]:
    """Give the boards; a lab that is not up is only there for the block."""
    if options.lab is not None:
        with _lab(options.lab) as lab:
            for command in join_commands(lab):
                shell.run(command)
            names = tuple(host.name for host in lab.hosts)
            yield Site(names, len(names), enter_command(lab, machine_cgroups()), lab.scale)
    elif options.hostfile is not None:
        names = _boards(options.hostfile)
        yield Site(names, len(names))
    else:
        yield Site(("localhost",), options.np, alone=True)


def _boards(hostfile: Path) -> tuple[str, ...]:
    """Return the boards of a hostfile, each of which takes one rank."""
    entries = read_hostfile(hostfile)
    for entry in entries:
        if entry.slots not in (None, 1):
            raise HeptiError(f"{hostfile}: {entry.host} has slots={entry.slots}, a board takes one rank")
    return tuple(dict.fromkeys(entry.host for entry in entries))


@contextmanager
def _lab(word: str) -> Iterator[Lab]:
    require_tools()
    if lab_name(word) in running():
        lab = load_lab(word)
        if not lab.ssh:
            again = f"hepti lab down {lab.name}, then hepti lab up {lab.name} --ssh"
            raise HeptiError(f"lab {lab.name} has no sshd on its hosts: {again}")
        left = f"lab {lab.name} is up already, and is left so: hepti lab down {lab.name} ends it"
        print(left, file=sys.stderr, flush=True)
        yield lab
        return
    lab = plan_lab(lab_name(word), find_cluster(word), ssh=True)
    print(f"lab {lab.name} comes up, which takes some seconds", file=sys.stderr, flush=True)
    with brought_up(lab) as up:
        yield up


def _unit(options: argparse.Namespace) -> str:
    """Return a systemd unit that starts what this command line would."""
    words = [sys.executable, "-P", "-m", "launch", "serve"]
    for name in ("hostfile", "lab", "cluster", "key_file", "sequences", "context", "host", "port", "most_waiting"):
        value = getattr(options, name)
        if value is not None:
            path = isinstance(value, Path) or (name in ("lab", "cluster") and Path(value).is_file())
            words += [f"--{name.replace('_', '-')}", str(Path(value).absolute() if path else value)]
    if options.hostfile is None and options.lab is None:
        words += ["--np", str(options.np)]
    for model in options.model:
        words += ["--model", str(model.absolute())]
    models = ", ".join(model.stem for model in options.model)
    facts = {"models": models, "user": getpass.getuser(), "folder": str(Path.cwd()), "command": shlex.join(words)}
    return UNIT.format(**{name: fact.replace("%", "%%") for name, fact in facts.items()})
