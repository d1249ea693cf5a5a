"""`Lab` and `Host`: a virtual cluster as it is now, its names on this machine, its state file.

Everything a lab owns carries its name, so that it can be found and removed without the state file:

    /run/netns/hepti-lab.NAME.HOST             a host: one interface eth0, bridged
    /run/netns/hepti-lab.NAME.switch           the bridge br0, one port a host; unseen by this machine's own network
    <cgroup root>/hepti-lab.NAME/HOST/run-PID  limits stand at HOST, processes below, grouped by the run that they serve
    /run/hepti-lab/NAME/                       state, agent, hosts, hostfile, keys, the hosts' disks
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from launch.base.json_output import written
from solver.base.clock import at_scale
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.cluster.cluster import Cluster
from solver.cluster.named import ready_names

PREFIX = "hepti-lab"
RUNTIME = Path("/run/hepti-lab")
# /24 of one lab; labs share it, since no lab sees another's bridge.
SUBNET = "10.83.0"
MAX_HOSTS = 253


@dataclass(frozen=True, slots=True)
class Host:
    """One virtual device: what was asked for, and how much of it is on at the moment."""

    name: str
    address: str
    device_flop_per_s: float  # of the cluster file
    bandwidth_bytes_per_s: float  # now, each way
    memory_bytes: int  # now
    exceptions: tuple[tuple[str, float], ...] = ()  # address of a peer, bytes per second of the link to it
    cpu: float = 1.0  # now, as a fraction of the device's speed
    core_flop_per_s: float = 0.0  # calibrated: what this host gets for one whole core, in the lab's time
    cores_exponent: float = 1.0  # calibrated: the quota goes with this power of `cpu`
    core: int = 0  # the one that all it runs is on, where the lab is of the real-time class
    connected: bool = True
    full: bool = False  # whether its disk is
    kills: int = 0  # how often `lab kill` has ended everything on it

    @property
    def compute_flop_per_s(self) -> float:
        """The speed that is asked for now."""
        return self.device_flop_per_s * self.cpu

    @property
    def cores(self) -> float:
        """The CPU quota in cores that gives that speed.

        It falls more slowly than the speed: a host that stands still for longer finds less of its numbers in the cache.
        """
        return self.device_flop_per_s / self.core_flop_per_s * math.pow(self.cpu, self.cores_exponent)

    @property
    def threads(self) -> int:
        """BLAS threads: a thread more than there are cores only eats quota."""
        return max(1, math.ceil(self.device_flop_per_s / self.core_flop_per_s - 0.05))


@dataclass(frozen=True, slots=True)
class Lab:
    """A virtual cluster: hosts in rank order.

    Speeds, bandwidths, latency and every measured second are those of the cluster file: the lab's time. At a `scale`
    below 1 hosts and links run at this fraction of them, and a second of the lab takes 1 / scale seconds of the clock.
    """

    name: str
    hosts: tuple[Host, ...]
    latency_s: float
    scale: float = 1.0
    ssh: bool = False
    real_time: bool = False  # what its hosts run is of the real-time class, whose shares come in finer pieces
    started: str = ""  # by whom, where and when: names of labs are the machine's

    @property
    def title(self) -> str:
        """What tables call it: its name, and its scale where seconds are not the clock's."""
        return f"lab {self.name}{at_scale(self.scale)}"

    @property
    def identity(self) -> str:
        """Twelve hex digits of what its hosts and links were asked to be: what is measured of them is for no others."""
        hosts = [
            (host.name, host.device_flop_per_s, host.bandwidth_bytes_per_s, host.exceptions) for host in self.hosts
        ]
        facts = (hosts, [host.memory_bytes for host in self.hosts], self.latency_s, self.scale)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        """Where the lab keeps its files."""
        return RUNTIME / self.name

    @property
    def agent(self) -> Path:
        """The script that runs a command on a host, as ssh would."""
        return self.directory / "agent"

    @property
    def hostfile(self) -> Path:
        """The hostfile for mpirun."""
        return self.directory / "hostfile"

    @property
    def namespace_prefix(self) -> str:
        """What the names of all its network namespaces begin with."""
        return f"{PREFIX}.{self.name}."

    @property
    def switch(self) -> str:
        """The network namespace of the bridge."""
        return f"{self.namespace_prefix}switch"

    def namespace(self, host: Host) -> str:
        """Return the network namespace of a host."""
        return f"{self.namespace_prefix}{host.name}"

    def disk(self, host: Host) -> Path:
        """Return the temporary directory of a host: in a lab with sshd a file system of its own."""
        return self.directory / "tmp" / host.name

    def host(self, name: str) -> Host:
        """Return a host by name.

        Raises
        ------
        HeptiError
            If there is none.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        names = [host.name for host in self.hosts]
        raise HeptiError(f"lab {self.name} has no host {name!r}{did_you_mean(name, names)}")

    def link_bytes_per_s(self, sender: Host, receiver: Host) -> float:
        """Return what one host can send to another."""
        for peer, rate in sender.exceptions:
            if peer == receiver.address:
                return rate
        return min(sender.bandwidth_bytes_per_s, receiver.bandwidth_bytes_per_s)

    def with_host(self, changed: Host) -> Lab:
        """Return the lab with one host changed."""
        return replace(self, hosts=tuple(changed if host.name == changed.name else host for host in self.hosts))

    def save(self) -> None:
        """Write the state file, whole or not at all."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        fresh = self.directory / "lab.json.new"
        fresh.write_text(text)
        fresh.rename(self.directory / "lab.json")


def plan_lab(name: str, cluster: Cluster, ssh: bool = False) -> Lab:
    """Give every device of a cluster a host."""
    require_name(name)
    if len(cluster.devices) > MAX_HOSTS:
        raise HeptiError(f"{len(cluster.devices)} devices, a lab has room for {MAX_HOSTS}: leave some out")
    addresses = [f"{SUBNET}.{number}" for number in range(1, len(cluster.devices) + 1)]
    hosts = []
    for rank, device in enumerate(cluster.devices):
        # The name becomes a host name, a file name and a word in a shell script.
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?", device.name) or device.name == "switch":
            raise HeptiError(f"device {device.name!r} cannot be a host name: use at most 32 letters, digits and dashes")
        exceptions = tuple(
            (addresses[other], cluster.link(rank, other).bandwidth_bytes_per_s)
            for other in range(len(addresses))
            if other != rank and frozenset((device.name, cluster.names[other])) in cluster.links
        )
        hosts.append(
            Host(
                name=device.name,
                address=addresses[rank],
                device_flop_per_s=device.compute_flop_per_s,
                bandwidth_bytes_per_s=device.bandwidth_bytes_per_s or cluster.network.bandwidth_bytes_per_s,
                memory_bytes=device.memory_bytes,
                exceptions=exceptions,
            )
        )
    return Lab(name, tuple(hosts), cluster.network.latency_s, ssh=ssh)


def require_name(name: str) -> None:
    """Refuse what cannot be a lab's name: it becomes part of paths, some of which are removed."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name):
        raise HeptiError(f"lab name {name!r}: use at most 32 small letters, digits and dashes (--name)")


def lab_name(word: str) -> str:
    """Return the lab's name of a cluster file, a ready file or a name."""
    return Path(word).stem.lower().replace("_", "-")


def running() -> list[str]:
    """Return the names of the labs that are up."""
    return sorted(file.parent.name for file in RUNTIME.glob("*/lab.json"))


def not_up(name: str) -> str:
    """Return that there is no such lab, and which there are."""
    return f"lab {name} is not up{did_you_mean(name, running())}"


def load_lab(word: str | None) -> Lab:
    """Read the state of a lab that is up; `None` means the only one there is."""
    names = running()
    if word is None and len(names) != 1:
        none = f"no lab is up: hepti lab up CLUSTER, a file or one of {', '.join(ready_names())}"
        raise HeptiError(f"which lab? up are: {', '.join(names)}" if names else none)
    name = names[0] if word is None else lab_name(word)
    if name not in names:
        raise HeptiError(f"{not_up(name)}: start it with lab up {word}")
    state = written(RUNTIME / name / "lab.json", f"lab {name}")
    hosts = tuple(
        Host(**{**host, "exceptions": tuple((peer, rate) for peer, rate in host["exceptions"])})
        for host in state.pop("hosts")
    )
    return Lab(hosts=hosts, **state)
