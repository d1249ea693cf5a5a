"""`python -m launch lab …`: what a person types and what they see."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from launch.base import shell
from launch.base.tables import show
from launch.lab import down as lab_down
from launch.lab import run as lab_run
from launch.lab import up as lab_up
from launch.lab.agent import on_host
from launch.lab.lab import Host, Lab, lab_name, load_lab, not_up, plan_lab
from launch.lab.limits import brake_of
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.cluster.cluster import GIB, quantities
from solver.cluster.named import find_cluster

SETTINGS = ("cpu", "gflops", "bandwidth_mbps", "memory_gib")
CPU_LIMITS = (1e-3, 100.0)
EXAMPLES = {  # LAB may be left out where one lab is up
    "up": "up mixed4        # four unequal boards; or any cluster file",
    "run": "run mixed4 -- python -m hepti_mpi --model bert-large.h5 --random 256",
    "shell": "shell mixed4 pi-1 -- free -m",
    "status": "status mixed4",
    "set": "set mixed4 pi-1 cpu=25% bandwidth_mbps=240 memory_gib=1",
    "cut": "cut mixed4 pi-1",
    "mend": "mend mixed4 pi-1",
    "fill": "fill mixed4 pi-1",
    "clear": "clear mixed4 pi-1",
    "kill": "kill mixed4 pi-1",
    "boot": "boot mixed4 pi-1",
    "down": "down mixed4",
}


def _example(*names: str) -> str:
    return "example, as root:\n" + "".join(f"  hepti lab {EXAMPLES[name]}\n" for name in names)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `lab` and its commands."""
    lab = subparsers.add_parser(
        "lab", help="a virtual cluster on this machine", epilog=_example("up", "run", "set", "down"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = lab.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        def as_root(options: argparse.Namespace) -> int:
            lab_up.require_tools()
            return function(options)

        # Help is a format, a description is not.
        parser = commands.add_parser(
            name, help=text.replace("%", "%%"), description=text, epilog=_example(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        parser.set_defaults(function=as_root)
        return parser

    parser = add("up", _up, "start a lab, calibrate and measure it")
    parser.add_argument("cluster", metavar="CLUSTER", help="a cluster file, or a ready one: mixed4, paper2, …")
    parser.add_argument("--name", help="name of the lab (default: the file's)")
    parser.add_argument(
        "--scale",
        type=float,
        help="fraction of the file's speeds to run at (default: what this machine carries)",
    )
    parser.add_argument("--ssh", action="store_true", help="start a real sshd on every host, with a disk of its own")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser = add("down", _down, "end a lab and remove all of it, also after a crash")
    parser.add_argument("lab", metavar="LAB")
    parser = add("status", _status, "show the hosts of a lab as they are now")
    parser.add_argument("lab", metavar="LAB", nargs="?")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser = add("set", _set, "change a host while it runs: cpu=25% gflops=33 bandwidth_mbps=240 memory_gib=1")
    parser.add_argument("words", metavar="[LAB] HOST KEY=VALUE", nargs="+")
    for name, function, text in (
        ("cut", _changing(lambda host: replace(host, connected=False)), "unplug a host's network cable"),
        ("mend", _changing(lambda host: replace(host, connected=True)), "plug it in again"),
        (
            "fill",
            _changing(lambda host: replace(host, full=True)),
            "fill a host's disk, for its temporary files (up --ssh)",
        ),
        ("clear", _changing(lambda host: replace(host, full=False)), "give it its space back"),
        ("kill", _kill, "kill every process on a host"),
        ("boot", _boot, "start a host's sshd again that was killed (up --ssh)"),
    ):
        parser = add(name, function, text)
        parser.add_argument("words", metavar="[LAB] HOST", nargs="+")
    parser = add("run", _run, "run a program on the hosts under mpirun: run [LAB] [--np N] -- PROGRAM ARGS")
    parser.add_argument("lab", metavar="LAB", nargs="?")
    parser.add_argument("--np", type=int, help="ranks (default: one a host)")
    parser = add("shell", _shell, "run one command on one host: shell [LAB] HOST -- COMMAND ARGS")
    parser.add_argument("words", metavar="[LAB] HOST", nargs="+")


def _up(options: argparse.Namespace) -> int:
    name = options.name or lab_name(options.cluster)
    if options.scale is not None and not 0 < options.scale <= 1:
        raise HeptiError(f"--scale is {options.scale:g}, must be above 0 and at most 1")
    lab, achieved, notes = lab_up.up(plan_lab(name, find_cluster(options.cluster), options.ssh), options.scale)
    measured = [
        {
            "host": host.name,
            "asked_gflops": host.compute_flop_per_s / 1e9,
            "achieved_gflops": found.compute_flop_per_s / 1e9,
            # The ring in which it was measured: from the host before, and from the last to the first.
            "asked_mbps": lab.link_bytes_per_s(lab.hosts[number - 1], host) * 8 / 1e6,
            "achieved_mbps": found.bandwidth_bytes_per_s * 8 / 1e6,
        }
        for number, (host, found) in enumerate(zip(lab.hosts, achieved, strict=True))
    ]
    if options.json:
        print(json.dumps({"lab": lab.name, "scale": lab.scale, "hosts": measured, "notes": notes}))
        return 0
    columns = ["host", "asked GFLOP/s", "achieved", "asked Mbps", "achieved", "memory GiB", "cores", "period ms"]
    rows = [
        [
            host.name,
            f"{row['asked_gflops']:.1f}",
            f"{row['achieved_gflops']:.1f}",
            f"{row['asked_mbps']:.0f}",
            f"{row['achieved_mbps']:.0f}",
            f"{host.memory_bytes / GIB:.2f}",
            f"{host.cores:.1%}",
            f"{brake_of(lab).quota_us(host.cores)[1] * lab.scale / 1e3:.1f}",
        ]
        for host, row in zip(lab.hosts, measured, strict=True)
    ]
    show(f"{lab.title} is up", columns, rows)
    for note in notes:
        print(f"note: {note}")
    return 0


def _down(options: argparse.Namespace) -> int:
    name = lab_name(options.lab)
    if not lab_down.down(name):
        raise HeptiError(not_up(name))
    print(f"lab {name} is down")
    return 0


def _status(options: argparse.Namespace) -> int:
    lab = load_lab(options.lab)
    used = lab_up.usage(lab)
    if options.json:
        print(
            json.dumps(
                {
                    "lab": lab.name,
                    "scale": lab.scale,
                    "started": lab.started,
                    "hosts": [{**_host(host), **use} for host, use in zip(lab.hosts, used, strict=True)],
                }
            )
        )
        return 0
    columns = ["host", "asked GFLOP/s", "cores", "asked Mbps", "memory GiB", "used GiB", "processes", "state"]
    rows = [
        [
            host.name,
            f"{host.compute_flop_per_s / 1e9:.1f}",
            f"{host.cores:.1%}",
            f"{host.bandwidth_bytes_per_s * 8 / 1e6:.0f}",
            f"{host.memory_bytes / GIB:.2f}",
            f"{use['memory_used_gib']:.2f}",
            f"{use['processes']}",
            _state(host),
        ]
        for host, use in zip(lab.hosts, used, strict=True)
    ]
    show(f"{lab.title}, started by {lab.started}", columns, rows)
    return 0


def _state(host: Host) -> str:
    """Return what is not as `lab up` made it, in the words of `lab set` and its like."""
    slowed = [f"cpu={host.cpu:.0%}"] * (host.cpu != 1)
    return ", ".join(slowed + ["cable cut"] * (not host.connected) + ["disk full"] * host.full)


def _host(host: Host) -> dict[str, object]:
    return {
        "host": host.name,
        "address": host.address,
        "gflops": host.compute_flop_per_s / 1e9,
        "cpu": host.cpu,
        "cores": host.cores,
        "bandwidth_mbps": host.bandwidth_bytes_per_s * 8 / 1e6,
        "memory_gib": host.memory_bytes / GIB,
        "connected": host.connected,
        "disk_full": host.full,
    }


def _set(options: argparse.Namespace) -> int:
    settings = [word for word in options.words if "=" in word]
    if not settings:
        raise HeptiError("nothing to set: lab set [LAB] HOST cpu=25% bandwidth_mbps=240 memory_gib=1")
    lab, host = _lab_and_host([word for word in options.words if "=" not in word])
    for setting in settings:
        host = apply_setting(host, setting)
    lab_up.change(lab, host)
    return 0


def apply_setting(host: Host, setting: str) -> Host:
    """Return the host with one KEY=VALUE applied; `cpu` is a fraction or percentage of the device's own speed."""
    key, _, text = setting.partition("=")
    if key not in SETTINGS:
        raise HeptiError(f"cannot set {key!r}{did_you_mean(key, SETTINGS)}")
    percent = key == "cpu" and text.endswith("%")
    try:
        value = float(text.removesuffix("%") if percent else text) / (100 if percent else 1)
    except ValueError:
        raise HeptiError(f"{setting}: {text!r} is not a number") from None
    if key == "cpu":
        low, high = CPU_LIMITS
        if not low <= value <= high:
            raise HeptiError(f"{setting}: cpu must be between {low:g} and {high:g}")
        return replace(host, cpu=value)
    fields = quantities({key: value}, setting)
    if key == "gflops":
        return replace(host, cpu=fields["compute_flop_per_s"] / host.device_flop_per_s)
    return replace(host, **fields)


def _changing(changed: Callable[[Host], Host]) -> Callable[[argparse.Namespace], int]:
    def function(options: argparse.Namespace) -> int:
        lab, host = _lab_and_host(options.words)
        lab_up.change(lab, changed(host))
        return 0

    return function


def _kill(options: argparse.Namespace) -> int:
    lab, host = _lab_and_host(options.words)
    print(f"killed {lab_up.kill_host(lab, host)} processes on {host.name}")
    return 0


def _boot(options: argparse.Namespace) -> int:
    lab, host = _lab_and_host(options.words)
    lab_up.boot_host(lab, host)
    print(f"{host.name} is up again")
    return 0


def _lab_and_host(names: Sequence[str]) -> tuple[Lab, Host]:
    if len(names) not in (1, 2):
        raise HeptiError(f"expected [LAB] HOST, got {' '.join(names) or 'nothing'}")
    lab = load_lab(names[0] if len(names) == 2 else None)
    return lab, lab.host(names[-1])


def _shell(options: argparse.Namespace) -> int:
    lab, host = _lab_and_host(options.words)
    return shell.wait(shell.start_here(on_host(lab, host, options.program or ["bash"]), shell.environment())) or 0


def _run(options: argparse.Namespace) -> int:
    lab = load_lab(options.lab)
    ranks = len(lab.hosts) if options.np is None else options.np
    if ranks < 1:
        raise HeptiError(f"--np {ranks}: a run needs at least one rank")
    return lab_run.run(lab, ranks, options.program)
