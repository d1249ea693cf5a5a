"""`python -m launch doctor` and `python -m launch hostfile`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.base import shell
from launch.base.tables import show
from launch.doctor.ask import ask_all, ask_pairs
from launch.doctor.findings import Finding, HostAnswer, examine, examine_hostfile, examine_pairs, out_of_reach
from launch.start.hostfile import HostfileEntry, read_hostfile, split_hosts
from launch.start.mpirun import hostfile_text
from launch.start.reach import remote
from solver.base.clock import at_scale
from solver.base.command import check_path
from solver.base.errors import HeptiError
from solver.base.hub import missing
from solver.base.phrases import counted
from solver.cluster.cluster import GIB


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor` and `hostfile`."""
    parser = subparsers.add_parser(
        "doctor",
        help="find what is wrong with a cluster, and its mend",
        description="Check every host of a hostfile, and every pair; run it where mpirun will be started.",
        epilog="example: hepti doctor --hostfile pis --model bert-large.h5",
    )
    parser.set_defaults(function=_doctor)
    add_hosts(parser)
    parser.add_argument("--model", default="", metavar="MODEL.h5", help="also compare this file on all hosts")
    parser.add_argument("--python", default=sys.executable, help="the interpreter, as mpirun will be told")
    parser.add_argument("--agent", default="", help="what replaces ssh, as in mpirun's plm_ssh_agent")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser = subparsers.add_parser(
        "hostfile",
        help="write a hostfile that is right",
        description="Write one line a host, with slots=1, the hosts tried by ssh; rank 0 runs on the first.",
        epilog="example: python -m launch hostfile pi-0 pi-1 pi-2 pi-3 --out pis",
    )
    parser.set_defaults(function=_hostfile)
    parser.add_argument("hosts", metavar="HOST", nargs="+", help="a host, or a hostfile whose hosts to take")
    parser.add_argument("--out", type=Path, metavar="F", help="write there (default: print)")


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which hosts a command is about."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--hosts", metavar="HOST,…", help="the hosts, rank 0's first")
    where.add_argument("--hostfile", type=Path, metavar="F", help="a file of them, as mpirun reads it")


def asked_hosts(options: argparse.Namespace) -> list[HostfileEntry]:
    """Return the hosts that these options name."""
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    return [HostfileEntry(host, 1) for host in split_hosts(options.hosts)]


def _doctor(options: argparse.Namespace) -> int:
    if options.model and not Path(options.model).exists():
        raise HeptiError(missing(options.model))
    entries = asked_hosts(options)
    answers, findings = check_hosts(entries, options.python, options.agent, options.model)
    if options.json:
        print(json.dumps(report(answers, findings)))
    else:
        show_findings(f"hosts of {options.hostfile or options.hosts}", answers, findings)
    return 1 if findings else 0


def check_hosts(
    entries: Sequence[HostfileEntry], python: str, agent: str, model: str
) -> tuple[list[HostAnswer], list[Finding]]:
    """Ask the hosts of a hostfile, all at the same time; return their answers and what is wrong."""
    hosts = list(dict.fromkeys(entry.host for entry in entries))
    answers = ask_all(hosts, python, agent, model)
    findings = [*examine_hostfile(entries, os.environ), *examine(answers, model)]
    reachable = [answer.host for answer in answers if answer.reached]
    return answers, findings + examine_pairs(reachable, ask_pairs(reachable, agent))


def report(answers: Sequence[HostAnswer], findings: Sequence[Finding]) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "healthy": not findings,
        "hosts": {answer.host: dataclasses.asdict(answer) for answer in answers},
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def show_findings(of: str, answers: Sequence[HostAnswer], findings: Sequence[Finding]) -> None:
    """Print what hosts answered, and what is wrong with them; `of` says which they are."""
    rows = []
    for answer in answers:
        facts = answer.facts
        if facts is None:
            rows.append([answer.host, *["-"] * 7])
            continue
        heat = "-" if facts["temperature_c"] is None else f"{facts['temperature_c']:.0f}"
        networks = ", ".join(f"{entry['name']} {entry['address']}" for entry in facts["interfaces"])
        cores = f"{facts['usable_cores']} of {facts['cores']}"
        free = f"{facts['free_bytes'] / GIB:.2f}"
        mpi = answer.mpi.rpartition(" ")[2]
        kernels = answer.kernels["backend"] if answer.kernels else "-"
        rows.append([answer.host, facts["python"], kernels, mpi, cores, free, heat, networks])
    columns = ["host", "Python", "kernels", "MPI", "cores", "free GiB", "°C", "links"]
    show(f"{of}{at_scale()}", columns, rows)
    if findings:
        lines = [[finding.host, finding.problem, finding.mend] for finding in findings]
        show(f"{counted(len(findings), 'finding')} on {of}", ["host", "finding", "mend"], lines)
    else:
        print(f"{of}: {len(answers)}, nothing found")


def _hostfile(options: argparse.Namespace) -> int:
    if options.out is not None:
        check_path(options.out)
    hosts: list[str] = []
    for word in options.hosts:
        hosts += [entry.host for entry in read_hostfile(Path(word))] if Path(word).is_file() else [word]
    hosts = list(dict.fromkeys(hosts))
    for host in hosts:
        code, _, error = shell.attempt(remote(host, "", "true"), timeout_s=10)
        if code:
            problem, mend = out_of_reach(host, " ".join(error.split()) or f"exit code {code}")
            raise HeptiError(f"{host}: {problem}: {mend}, or leave it out")
    text = hostfile_text(hosts)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)
        print(f"{options.out}: {len(hosts)} hosts, one rank each; check them: hepti doctor --hostfile {options.out}")
    return 0
