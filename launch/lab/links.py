"""The network of a lab as `ip` and `tc` commands; nothing here runs them.

One bridge in a namespace of its own; a host's eth0 is joined to its port. A token bucket on both ends of that cable
shapes each direction once at the sender and once at the receiver.
"""

from __future__ import annotations

from launch.base.shell import Command
from launch.lab.lab import Host, Lab

# The largest packet that a host hands to its link in one piece, and a bucket just above it: what the wire takes in so
# long, 32 KiB at 940 Mbps, but two frames at least. In pieces of 4 KiB 940 Mbps were 885, in 16 KiB 936. Were the
# bucket smaller, the kernel would cut pieces inside the sender's CPU quota, 6 ms of CPU per MiB instead of 0.4; were it
# larger, messages would pass at once after a pause. 24 KiB take 2.1 ms at 80 Mbps, by the wire 2.5.
PIECE_S = 32 * 1024 / (940e6 / 8)
SMALLEST_PIECE = 4096
QUEUE_S = 0.1
# The bucket counts Ethernet frames of 1514 bytes, people count the 1448 bytes of payload in them.
FRAME_PER_PAYLOAD = 1514 / 1448


def network_commands(lab: Lab) -> list[Command]:
    """Return the commands that build namespaces, bridge and cables, unshaped."""
    commands: list[Command] = [
        ["ip", "netns", "add", lab.switch],
        ["ip", "-n", lab.switch, "link", "add", "br0", "type", "bridge"],
        ["ip", "-n", lab.switch, "link", "set", "br0", "up"],
    ]
    for host in lab.hosts:
        inside, port = lab.namespace(host), port_name(host)
        commands += [
            ["ip", "netns", "add", inside],
            ["ip", "-n", lab.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inside],
            ["ip", "-n", lab.switch, "link", "set", port, "master", "br0", "up"],
            ["ip", "-n", inside, "address", "add", f"{host.address}/24", "dev", "eth0"],
            ["ip", "-n", inside, "link", "set", "lo", "up"],
            ["ip", "-n", inside, "link", "set", "eth0", "up"],
        ]
    return commands


def port_name(host: Host) -> str:
    """Return the name of the bridge's end of a host's cable: the last byte of its address."""
    return f"port{host.address.rpartition('.')[2]}"


def shape_commands(lab: Lab, host: Host) -> list[Command]:
    """Return the commands that give both ends of a cable the host's bandwidth, new or changed while in use.

    What waits there is dropped: a piece larger than the new bucket would never pass, nor anything behind it. Open
    connections learn the size of pieces when they look for their route again.
    """
    fastest = max([host.bandwidth_bytes_per_s, *(rate for _, rate in host.exceptions)])
    bucket = _bucket(fastest, lab.scale)
    commands: list[Command] = []
    for namespace, device, exceptions in (
        (lab.namespace(host), "eth0", host.exceptions),
        (lab.switch, port_name(host), ()),
    ):
        queue: Command = ["tc", "-n", namespace, "qdisc", "replace", "dev", device]
        commands += [
            ["ip", "-n", namespace, "link", "set", "dev", device, "gso_max_size", str(piece_of(fastest))],
            ["ip", "-n", namespace, "route", "flush", "cache"],
            [*queue, "root", "pfifo"],
            *(_classes(lab, host, fastest) if exceptions else [[*queue, *bucket]]),
        ]
    return commands


def piece_of(bytes_per_s: float) -> int:
    """Return how many bytes a host hands to a link of this speed in one piece."""
    return max(SMALLEST_PIECE, round(bytes_per_s * PIECE_S))


def burst_of(bytes_per_s: float) -> int:
    """Return how many bytes pass such a link at once after a pause: a piece, and what its frames' headers take."""
    return piece_of(bytes_per_s) * 9 // 8


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
    burst = str(burst_of(bytes_per_s))
    return ["root", "handle", "1:", "tbf", "rate", _rate(bytes_per_s, scale), "burst", burst, "latency", queue]


def _rate(bytes_per_s: float, scale: float) -> str:
    return f"{bytes_per_s * scale * 8 * FRAME_PER_PAYLOAD:.0f}bit"


def _classes(lab: Lab, host: Host, total: float) -> list[Command]:
    """Return one class for everybody and one for each of the exceptions, told apart by address."""
    tc = ["tc", "-n", lab.namespace(host)]
    on = ["dev", "eth0"]

    def rate_class(parent: str, number: int, rate: float) -> Command:
        burst = str(burst_of(rate))
        limits = ["rate", _rate(rate, lab.scale), "burst", burst, "cburst", burst]
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
