"""Carry a lab out: up, down, and the changes while it runs."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from launch.base import shell
from launch.lab.agent import agent_text, hosts_text, on_host
from launch.lab.capacity import (
    SlowCoresError,
    choose_scale,
    core_count,
    memory_notes,
    placed,
    require_capacity,
    told_core_speed,
    usable_cores,
    with_margin,
)
from launch.lab.down import down, kill_everything, machine_cgroups, processes
from launch.lab.lab import Host, Lab, load_lab
from launch.lab.limits import (
    ASLEEP_CORES,
    OPTIONAL_FILES,
    REAL_TIME_CORES,
    REAL_TIME_PERIOD,
    ROUND_ROBIN,
    SHORT_TURN,
    Cgroups,
    brake_of,
    cpu_files,
    memory_files,
    real_time_files,
    real_time_share,
    weight_file,
)
from launch.lab.links import connect_command, latency_commands, network_commands, shape_commands
from launch.lab.measure import calibrate, core_speed, throughput
from launch.lab.ssh import key_commands, known_hosts, ssh_config, sshd_command, sshd_config
from launch.start.mpirun import SOCKET_BUFFER, hostfile_text
from launch.start.reach import SSH
from solver.base.errors import HeptiError, explained
from solver.cluster.cluster import GIB

TOOLS = dict.fromkeys(("ip", "tc"), "iproute2")
TOOLS |= dict.fromkeys(("nsenter", "unshare", "setpriv", "chrt", "taskset"), "util-linux")
# In memory, and far more than what programs on a host write; a full one has what it holds.
DISK = "size=4g,nr_inodes=1m"
BLOCK_BYTES = 4096
PROMISED = 0.05  # by which part of it a host's speed may differ from what is asked for
FILL_TRIES = 20  # what is written meanwhile makes the kernel refuse


@dataclass(frozen=True, slots=True)
class Achieved:
    """What `up` measured on one host, in the lab's time."""

    compute_flop_per_s: float
    bandwidth_bytes_per_s: float


def up(lab: Lab, scale: float | None = None) -> tuple[Lab, list[Achieved], list[str]]:
    """Build a lab, calibrate it, measure it.

    Parameters
    ----------
    scale
        None: the one that this machine carries, with a margin.

    Returns
    -------
    lab, achieved, notes
        The calibrated lab, what every host and its link achieved, and what this machine cannot imitate.

    Raises
    ------
    HeptiError
        If it is up already, or if this machine cannot carry it: no root, a tool or `tbf` missing, too few cores for the
        scale that is asked for.
    """
    require_tools()
    if lab.ssh and shutil.which("sshd") is None:
        raise HeptiError("--ssh needs the program sshd, which is not installed: apt install openssh-server")
    _require_down(lab)
    try:
        return _measured(scaled(lab, scale))
    except SlowCoresError as slow:  # in a lab's pieces, and beside its other hosts, a core may be half as fast
        if scale is not None:
            raise
        fits = slow.fits
    return _measured(scaled(lab, with_margin(fits)))


def _measured(lab: Lab) -> tuple[Lab, list[Achieved], list[str]]:
    """Build a lab at its scale, calibrate it, measure it; what fails leaves nothing."""
    require_capacity(lab)
    cgroups = machine_cgroups()
    down(lab.name)  # what a crash has left
    try:
        notes = [*memory_notes(lab), *_build(lab, cgroups)]
        _start_tickers(lab, cgroups)
        free = cgroups.cpu_group(lab.name, "measure")
        free.mkdir()
        bandwidths = throughput(lab, free)
        lab, speeds = calibrate(lab, lambda lab, host: limit_cpu(cgroups, lab, host))
        if lab.ssh:
            _start_ssh(lab)
        notes += _speed_notes(lab, speeds)
        lab = replace(lab, started=f"{_person()} in {Path.cwd()} at {datetime.now():%Y-%m-%d %H:%M}")
        lab.save()
    except BaseException as error:
        down(lab.name)
        if isinstance(error, OSError):
            raise HeptiError(f"this machine does not let us build a lab (is it a container?): {error}") from error
        raise
    return lab, [Achieved(*pair) for pair in zip(speeds, bandwidths, strict=True)], notes


@contextmanager
def brought_up(lab: Lab) -> Iterator[Lab]:
    """Build a lab for the block, and say on standard error what this machine cannot imitate of it."""
    lab, _, notes = up(lab)
    try:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        yield lab
    finally:
        down(lab.name)


@contextmanager
def another(lab: Lab, name: str) -> Iterator[Lab]:
    """Build a lab like one that is up, with its calibration, and remove it in the end.

    Two that work at the same time take each other's cores: see `awake`.
    """
    other = replace(lab, name=name, ssh=False)
    _require_down(other)
    cgroups = machine_cgroups()
    _sleep(cgroups, lab)
    try:
        _build(other, cgroups)
        _sleep(cgroups, other)
        other.save()
        yield other
    finally:
        down(name)
        _wake(cgroups, lab)


@contextmanager
def awake(lab: Lab) -> Iterator[None]:
    """Let what runs on a lab's hosts go on; afterwards it stands still."""
    cgroups = machine_cgroups()
    _wake(cgroups, lab)
    _signal(cgroups, lab, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(cgroups, lab, signal.SIGSTOP)
        _sleep(cgroups, lab)


def _wake(cgroups: Cgroups, lab: Lab) -> None:
    """Give a lab back what it has of the real-time class, shared out as its hosts are now."""
    if lab.real_time:
        _share_real_time(cgroups.cpu_group(lab.name), REAL_TIME_CORES)
        for host in load_lab(lab.name).hosts:
            limit_cpu(cgroups, lab, host)


def _sleep(cgroups: Cgroups, lab: Lab) -> None:
    """Take from a lab what it has of the real-time class: all labs together have what one needs."""
    if lab.real_time:
        for host in lab.hosts:
            _share_real_time(cgroups.cpu_group(lab.name, host.name), ASLEEP_CORES)
        _share_real_time(cgroups.cpu_group(lab.name), 2 * len(lab.hosts) * ASLEEP_CORES)


def _signal(cgroups: Cgroups, lab: Lab, number: int) -> None:
    for host in lab.hosts:
        for process in processes(cgroups.cpu_group(lab.name, host.name)):
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(int(process), number)


def scaled(lab: Lab, scale: float | None) -> Lab:
    """Return the lab at a scale, chosen where it is None, with cores, and with quotas that are a first guess.

    Hosts with sshd are for several programs at a time. Of the real-time class they would take turns of 35 ms, and not
    wake beside one that computes; so they are not.
    """
    told = told_core_speed()
    lab = placed(replace(lab, real_time=not lab.ssh and machine_cgroups().real_time_left >= REAL_TIME_CORES))
    core_flop_per_s = core_speed(core_count())
    if scale is None:
        scale = choose_scale(lab, (told or core_flop_per_s) * brake_of(lab).left, usable_cores(lab.real_time))
    core_flop_per_s *= brake_of(lab).left / scale
    hosts = tuple(replace(host, core_flop_per_s=core_flop_per_s) for host in lab.hosts)
    return replace(lab, scale=scale, hosts=hosts)


def _require_down(lab: Lab) -> None:
    if (lab.directory / "lab.json").exists():
        by = load_lab(lab.name).started
        raise HeptiError(f"lab {lab.name} is up already, by {by}: lab down {lab.name}, or give this one another --name")


def _person() -> str:
    return os.environ.get("SUDO_USER") or getpass.getuser()


def change(lab: Lab, host: Host) -> Lab:
    """Put a host's new speed, bandwidth, memory cap or connection in force, under whatever is running."""
    before, lab = lab.host(host.name), lab.with_host(host)
    require_capacity(lab)
    if host.full != before.full:
        limit_disk(lab, host)
    cgroups = machine_cgroups()
    if host.cpu != before.cpu:
        limit_cpu(cgroups, lab, host)
    if host.memory_bytes != before.memory_bytes:
        limit_memory(cgroups, lab, host)
    if host.bandwidth_bytes_per_s != before.bandwidth_bytes_per_s:
        _shape(lab, [host])
    if host.connected != before.connected:
        shell.run(connect_command(lab, host, host.connected))
    lab.save()
    return lab


def kill_host(lab: Lab, host: Host) -> int:
    """Kill every process on a host, as pulling its plug would; return how many there were."""
    lab.with_host(replace(host, kills=host.kills + 1)).save()
    return kill_everything(machine_cgroups().groups(lab.name, host.name), [lab.namespace(host)])


def boot_host(lab: Lab, host: Host) -> None:
    """Start a host again that was killed: its sshd.

    Raises
    ------
    HeptiError
        If the lab has none, or the host runs.
    """
    _require_ssh(lab, "nothing to boot")
    if running := processes(machine_cgroups().cpu_group(lab.name, host.name)):
        raise HeptiError(f"{host.name} is up, with {len(running)} processes: lab kill {lab.name} {host.name} first")
    _start_sshd(lab, host)


def _require_ssh(lab: Lab, what: str) -> None:
    if not lab.ssh:
        raise HeptiError(f"lab {lab.name} has no sshd and no disks, {what}: lab down {lab.name}, then lab up --ssh")


def limit_disk(lab: Lab, host: Host) -> None:
    """Leave nothing free on a host's disk, or what it has at first.

    Raises
    ------
    HeptiError
        If the lab has no disks.
    """
    _require_ssh(lab, "nothing to fill")
    for _ in range(FILL_TRIES):
        options = DISK
        if host.full:
            found = os.statvfs(lab.disk(host))
            used = max(BLOCK_BYTES, (found.f_blocks - found.f_bfree) * found.f_frsize)  # 0 would mean no limit
            options = f"size={used},nr_inodes={found.f_files - found.f_ffree}"
        code, _, error = shell.attempt(["mount", "-o", f"remount,{options}", str(lab.disk(host))])
        if not code:
            return
    raise HeptiError(f"the disk of {host.name} does not get full: {' '.join(error.split())}")


def usage(lab: Lab) -> list[dict[str, float]]:
    """Return, per host, the processes and the memory they use now.

    Raises
    ------
    HeptiError
        If the lab is ended meanwhile, of which `down` removes the cgroups first and the state last.
    """
    cgroups = machine_cgroups()
    used = "memory.usage_in_bytes" if cgroups.memory_version == 1 else "memory.current"
    found = []
    for host in lab.hosts:
        mend = f"it is being ended, or was: lab down {lab.name} removes what is left"
        with explained(f"lab {lab.name} has lost {host.name}; {mend}", OSError):
            memory = int((cgroups.memory_group(lab.name, host.name) / used).read_text())
        numbers = processes(cgroups.cpu_group(lab.name, host.name))
        found.append({"processes": len(numbers), "memory_used_gib": memory / GIB})
    return found


def require_tools() -> None:
    """Refuse with one line what cannot work on this machine."""
    if os.geteuid() != 0:
        raise HeptiError("a lab needs root, for network namespaces and cgroups: sudo hepti lab …")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise HeptiError(f"a lab needs the program {tool}, which is not installed: apt install {package}")


def limit_cpu(cgroups: Cgroups, lab: Lab, host: Host) -> None:
    """Put a host's CPU quota in force; where its lab sleeps, the quota comes when it is woken."""
    group = cgroups.cpu_group(lab.name, host.name)
    if not lab.real_time:
        _write_limits(group, cpu_files(cgroups.cpu_version, host.cores))
    elif real_time_share(group.parent) > REAL_TIME_CORES / 2:
        require_capacity(lab)  # cores may have become slower since the scale was chosen
        _share_real_time(group, host.cores)


def limit_memory(cgroups: Cgroups, lab: Lab, host: Host) -> None:
    """Put a host's memory cap in force."""
    try:
        files = memory_files(cgroups.memory_version, host.memory_bytes)
        _write_limits(cgroups.memory_group(lab.name, host.name), files)
    except OSError as error:
        raise HeptiError(
            f"{host.name} cannot be cut down to {host.memory_bytes / GIB:.2f} GiB, its processes use more: "
            "end them first"
        ) from error


def _share_real_time(group: Path, cores: float) -> None:
    _write_limits(group, real_time_files(cores, int((group / REAL_TIME_PERIOD).read_text())))


def _write_limits(group: Path, files: Iterable[tuple[str, str]]) -> None:
    for name, value in files:
        if name not in OPTIONAL_FILES or (group / name).exists():
            (group / name).write_text(value)


def _build(lab: Lab, cgroups: Cgroups) -> list[str]:
    """Make the hosts with their links and limits; return what this machine cannot imitate."""
    _write_files(lab, cgroups)
    for command in network_commands(lab):
        shell.run(command)
    notes = [*_shape(lab, lab.hosts), *_buffer_note()]
    for host in lab.hosts:
        limit_cpu(cgroups, lab, host)
        limit_memory(cgroups, lab, host)
    return notes


def _write_files(lab: Lab, cgroups: Cgroups) -> None:
    lab.directory.mkdir(parents=True)
    lab.agent.write_text(agent_text(lab, cgroups))
    lab.agent.chmod(0o755)
    (lab.directory / "hosts").write_text(hosts_text(lab))
    lab.hostfile.write_text(hostfile_text([host.name for host in lab.hosts]))
    for host in lab.hosts:
        lab.disk(host).mkdir(parents=True)
        if lab.ssh:
            shell.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(lab.disk(host))])
        for group in cgroups.groups(lab.name, host.name):
            group.mkdir(parents=True)
    if lab.ssh:
        _write_ssh(lab)
    if cgroups.cpu_version == 2:
        for group in (cgroups.cpu, *cgroups.groups(lab.name)):
            (group / "cgroup.subtree_control").write_text("+cpu +memory")
    _write_limits(cgroups.cpu_group(lab.name), [weight_file(cgroups.cpu_version)])
    if lab.real_time:
        _share_real_time(cgroups.cpu_group(lab.name), REAL_TIME_CORES)
        ROUND_ROBIN.write_text(SHORT_TURN)


def _start_tickers(lab: Lab, cgroups: Cgroups) -> None:
    # In v1 the real-time class is closed to CPU groups without a share of their own: there only the memory group
    # says whose they are.
    group = cgroups.memory_group(lab.name, "ticker")
    group.mkdir()
    program = str(Path(__file__).with_name("ticker.py"))
    for core in sorted(os.sched_getaffinity(0)):
        join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        shell.start_alone(["bash", "-c", join, "bash", sys.executable, program, str(core), str(brake_of(lab).look_s)])


def _write_ssh(lab: Lab) -> None:
    files = lab.directory / "ssh"
    files.mkdir(mode=0o700)
    for command in key_commands(lab):
        shell.run(command)
    (files / "known_hosts").write_text(known_hosts(lab, (files / "host_key.pub").read_text()))
    (files / "ssh_config").write_text(ssh_config(lab))
    for host in lab.hosts:
        (files / host.name).mkdir(mode=0o700)
        (files / host.name / "authorized_keys").write_text((files / "user_key.pub").read_text())
        (files / host.name / "sshd_config").write_text(sshd_config(lab, host, shell.environment()["PATH"]))


def _start_ssh(lab: Lab) -> None:
    # sshd wants this directory of its own; Debian makes it at boot.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for host in lab.hosts:
        _start_sshd(lab, host)
    for host in lab.hosts:
        shell.run(on_host(lab, lab.hosts[0], [*SSH, "--", host.name, "true"]))


def _start_sshd(lab: Lab, host: Host) -> None:
    shell.run(on_host(lab, host, sshd_command(lab, host, shutil.which("sshd") or "sshd")))


def _shape(lab: Lab, hosts: Sequence[Host]) -> list[str]:
    """Shape these hosts' links; return a note if this kernel cannot delay packets."""
    for host in hosts:
        for command in shape_commands(lab, host):
            code, _, error = shell.attempt(command)
            if code:
                reason = " ".join(error.split()) or f"exit code {code}"
                raise HeptiError(f"this kernel cannot shape links (modprobe sch_tbf, sch_htb, cls_u32): {reason}")
    for host in hosts:
        for command in latency_commands(lab, host):
            if shell.attempt(command)[0]:
                return [
                    f"this kernel has no netem: links keep their own latency instead of {lab.latency_s * 1e6:.0f} µs"
                ]
    return []


def _speed_notes(lab: Lab, speeds: Iterable[float]) -> list[str]:
    """Say which hosts do not have the speed they are promised.

    A quota cannot give what another lab takes, and it is too large for cores that become faster after they were
    measured.
    """
    reasons = {
        True: "another lab or a busy machine below this one takes the rest",
        False: "this machine has become faster while it was measured: take the lab down, and bring it up again",
    }
    return [
        f"{host.name} achieved {speed / 1e9:.1f} of {host.compute_flop_per_s / 1e9:.1f} GFLOP/s: "
        f"{reasons[speed < host.compute_flop_per_s]}"
        for host, speed in zip(lab.hosts, speeds, strict=True)
        if abs(speed / host.compute_flop_per_s - 1) > PROMISED
    ]


def _buffer_note() -> list[str]:
    """Say if the kernel will not grant the socket buffers that overlap needs."""
    for name in ("wmem_max", "rmem_max"):
        granted = int(Path("/proc/sys/net/core", name).read_text())
        if granted < SOCKET_BUFFER:
            return [
                f"net.core.{name} is {granted}, exchanges want {SOCKET_BUFFER} to overlap with compute: "
                f"sysctl -w net.core.{name}={SOCKET_BUFFER}"
            ]
    return []
