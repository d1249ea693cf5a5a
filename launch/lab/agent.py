"""The text of a lab's agent: the one way onto its hosts, for mpirun in the place of ssh, and for `launch` itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from launch.base.shell import Command
from launch.lab.lab import Host, Lab
from launch.lab.limits import Cgroups
from solver.base.clock import LAB_VARIABLE, SCALE_VARIABLE

# The name of the environment variable that says which run a process belongs to.
RUN = "HEPTI_LAB_RUN"


def agent_text(lab: Lab, cgroups: Cgroups) -> str:
    """Return the shell script `agent HOST command…`.

    Like ssh it hands the words to a shell of the host. `ip netns exec` would hide /sys, so it enters by nsenter; host
    name and /etc/hosts live in namespaces that end with the process.
    """
    hosts = "\n".join(f"    {host.name}) threads={host.threads} core={host.core} ;;" for host in lab.hosts)
    ssh = f" && mount --bind {lab.directory}/ssh/ssh_config /etc/ssh/ssh_config" if lab.ssh else ""
    groups = " ".join(shlex.quote(str(group)) for group in cgroups.groups(lab.name))
    join = become = ""
    if lab.real_time:
        # A run's own group would need a share of the real-time class, of which the host's group has all: only the
        # memory group says what belongs to a run then.
        join = f"echo $$ > {shlex.quote(str(cgroups.cpu_group(lab.name)))}/$host/cgroup.procs || exit 1\n"
        groups = shlex.quote(str(cgroups.memory_group(lab.name)))
        become = "chrt --rr 1 taskset --cpu-list $core "
    return f"""\
#!/bin/bash
# {lab.name}: agent HOST command…
host=$1
shift
case $host in
{hosts}
    *) echo "lab {lab.name} has no host $host" >&2; exit 2 ;;
esac
{join}for group in {groups}; do
    group=$group/$host/${{{RUN}:-shell}}
    mkdir -p "$group" && echo $$ > "$group/cgroup.procs" || exit 1
done
export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads
export {SCALE_VARIABLE}={lab.scale!r} {LAB_VARIABLE}={lab.identity}
export TMPDIR={lab.directory}/tmp/$host
exec {become}nsenter --net=/run/netns/{lab.namespace_prefix}$host unshare --uts --mount bash -c \\
    "hostname $host && mount --bind {lab.directory}/hosts /etc/hosts{ssh} || exit 1
$*"
"""


def hosts_text(lab: Lab) -> str:
    """Return the /etc/hosts of every host of the lab."""
    return "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in lab.hosts)


def on_host(lab: Lab, host: Host, command: Sequence[str]) -> Command:
    """Return the command that runs `command` on a host, in the place of the caller (signals reach it directly)."""
    return [str(lab.agent), host.name, f"exec {shlex.join(command)}"]
