"""The network of a lab as `ip` and `tc` commands; nothing here runs them.

One bridge in a namespace of its own; a host's eth0 is joined to its port. A token bucket on both ends of that cable
shapes each direction once at the sender and once at the receiver.
"""

from __future__ import annotations

from launch.base.shell import Command
from launch.lab.lab import Host, Lab

# The largest packet that a host hands to its link in one piece, and a bucket just above it. Were the bucket smaller,
# the kernel would cut every packet inside the sender's CPU quota, 6 ms of CPU per MiB instead of 0.4; were it much
# larger, whole tiles would pass without wire time after a pause. 256 KiB after a pause take 2.09 ms at 940 Mbps and
# 8.0 ms at 240 (by the wire 2.23 and 8.74); with the kernel's own 64 KiB packets 1.85 and 6.5, at no less CPU.
SEGMENT = 32 * 1024
BURST = str(SEGMENT + 4096)
QUEUE_S = 0.1
# The bucket counts Ethernet frames of 1514 bytes, people count the 1448 bytes of payload in them.
FRAME_PER_PAYLOAD = 1514 / 1448


def network_commands(lab: Lab) -> list[Command]:
    """Return the commands that build namespaces, bridge and cables, unshaped."""
    largest = ["gso_max_size", str(SEGMENT)]
    commands: list[Command] = [
        ["ip", "netns", "add", lab.switch],
        ["ip", "-n", lab.switch, "link", "add", "br0", "type", "bridge"],
        ["ip", "-n", lab.switch, "link", "set", "br0", "up", *largest],
    ]
    for host in lab.hosts:
        inside, port = lab.namespace(host), port_name(host)
        commands += [
            ["ip", "netns", "add", inside],
            ["ip", "-n", lab.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inside],
            ["ip", "-n", lab.switch, "link", "set", port, "master", "br0", "up", *largest],
            ["ip", "-n", inside, "address", "add", f"{host.address}/24", "dev", "eth0"],
            ["ip", "-n", inside, "link", "set", "lo", "up"],
            ["ip", "-n", inside, "link", "set", "eth0", "up", *largest],
        ]
    return commands


def port_name(host: Host) -> str:
    """Return the name of the bridge's end of a host's cable: the last byte of its address."""
    return f"port{host.address.rpartition('.')[2]}"


def shape_commands(lab: Lab, host: Host) -> list[Command]:
    """Return the commands that give both ends of a cable the host's bandwidth, new or changed while in use."""
    inbound = max([host.bandwidth_bytes_per_s, *(rate for _, rate in host.exceptions)])
    bucket = _bucket(inbound, lab.scale)
    port: Command = ["tc", "-n", lab.switch, "qdisc", "replace", "dev", port_name(host), *bucket]
    if not host.exceptions:
        return [["tc", "-n", lab.namespace(host), "qdisc", "replace", "dev", "eth0", *bucket], port]
    return [*_classes(lab, host, inbound), port]


def latency_commands(lab: Lab, host: Host) -> list[Command]:
    """Return the commands that delay what a host sends; only kernels with netem carry them out."""
    delay = f"{lab.latency_s / lab.scale * 1e6:.0f}us"
    handle = "1:10" if host.exceptions else "1:1"
    inside = lab.namespace(host)
    return [["tc", "-n", inside, "qdisc", "replace", "dev", "eth0", "parent", handle, "netem", "delay", delay]]


def connect_command(lab: Lab, host: Host, connected: bool) -> Command:
    """Return the command that plugs a host's cable in or out."""
    return ["ip", "-n", lab.switch, "link", "set", port_name(host), "up" if connected else "down"]


def _bucket(bytes_per_s: float, scale: float) -> list[str]:
    # As long in the lab's time: as many bytes wait in the queue at every scale.
    queue = f"{QUEUE_S / scale * 1e3:.0f}ms"
    return ["root", "handle", "1:", "tbf", "rate", _rate(bytes_per_s, scale), "burst", BURST, "latency", queue]


def _rate(bytes_per_s: float, scale: float) -> str:
    return f"{bytes_per_s * scale * 8 * FRAME_PER_PAYLOAD:.0f}bit"


def _classes(lab: Lab, host: Host, total: float) -> list[Command]:
    """Return one class for everybody and one for each of the exceptions, told apart by address."""
    tc = ["tc", "-n", lab.namespace(host)]
    on = ["dev", "eth0"]

    def rate_class(parent: str, number: int, rate: float) -> Command:
        limits = ["rate", _rate(rate, lab.scale), "burst", BURST, "cburst", BURST]
        return [*tc, "class", "replace", *on, "parent", parent, "classid", f"1:{number}", "htb", *limits]

    commands: list[Command] = [
        [*tc, "qdisc", "replace", *on, "root", "handle", "1:", "htb", "default", "10"],
        rate_class("1:", 1, total),
        rate_class("1:1", 10, host.bandwidth_bytes_per_s),
    ]
    for number, (peer, rate) in enumerate(host.exceptions, start=11):
        match = ["u32", "match", "ip", "dst", f"{peer}/32", "flowid", f"1:{number}"]
        place = ["parent", "1:", "protocol", "ip", "prio", str(number)]
        commands += [rate_class("1:1", number, rate), [*tc, "filter", "replace", *on, *place, *match]]
    return commands
