"""Labs as data: names, addresses, state, and the commands that build their networks."""

import dataclasses

import pytest

from launch.__main__ import main
from launch.lab import down as lab_down
from launch.lab import lab as labs
from launch.lab import up as lab_up
from launch.lab.agent import agent_text, hosts_text, on_host
from launch.lab.capacity import SlowCoresError
from launch.lab.command import apply_setting
from launch.lab.down import down
from launch.lab.lab import Host, Lab, lab_name, load_lab, plan_lab
from launch.lab.limits import Cgroups
from launch.lab.links import burst_of, connect_command, latency_commands, network_commands, shape_commands
from launch.lab.ssh import ssh_config, sshd_config
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.cluster.named import find_cluster
from tests.kit import inside
from tests.kit.complaints import complaints

READY = {
    "paper2": [24.6, 70],
    "pi4x4": [24.6, 24.6, 24.6, 24.6],
    "pi5x4": [70, 70, 70, 70],
    "mixed4": [24.6, 70, 24.6, 10],
    "mixed3": [24.6, 70, 24.6],
    "wifi4": [24.6, 70, 24.6, 10],
    "wide8": [70, 70, 24.6, 24.6, 24.6, 24.6, 10, 10],
    "tight4": [24.6, 70, 24.6, 10],
}


def cluster(names=("pi-0", "pi-1", "pi-2"), links=None, mbps=940.0):
    devices = tuple(Device(name, 24.6e9, GIB) for name in names)
    return Cluster(devices, Link(mbps * 1e6 / 8, 2e-4), links or {})


def calibrated(lab, core=92e9):
    return dataclasses.replace(lab, hosts=tuple(dataclasses.replace(host, core_flop_per_s=core) for host in lab.hosts))


@pytest.mark.parametrize("name", READY)
def test_ready_clusters_have_the_speeds_of_their_names(name):
    ready = find_cluster(name)

    assert [device.compute_flop_per_s / 1e9 for device in ready.devices] == READY[name]
    assert ready.names == tuple(f"pi-{rank}" for rank in range(len(READY[name])))
    assert plan_lab(name, ready).name == name


def test_ready_clusters_differ_in_network_and_memory():
    assert find_cluster("mixed4").network.bandwidth_bytes_per_s == 940e6 / 8
    assert find_cluster("wifi4").network.bandwidth_bytes_per_s == 80e6 / 8
    assert find_cluster("tight4").devices[0].memory_bytes == round(0.6 * GIB)


def test_an_unknown_cluster_is_answered_with_the_nearest(kept):
    with pytest.raises(HeptiError) as caught:
        find_cluster("mixd4")
    kept(caught.value)


@pytest.mark.parametrize(
    ("word", "name"), [("mixed4", "mixed4"), ("/some/where/My_Lab.toml", "my-lab"), ("wifi4.toml", "wifi4")]
)
def test_a_lab_is_called_after_its_file(word, name):
    assert lab_name(word) == name


@pytest.mark.parametrize("name", ["", "a b", "../up", "x" * 33, "dot.dot", "UPPER"])
def test_lab_names_are_one_short_word(name):
    with pytest.raises(HeptiError, match="lab name"):
        plan_lab(name, cluster())


@pytest.mark.parametrize("name", ["a.b", "pi_0", "x" * 33, "-pi", "switch", "pi;reboot", "$(reboot)"])
def test_device_names_must_be_host_names(name):
    """They become words of a shell script and files."""
    with pytest.raises(HeptiError, match="cannot be a host name"):
        plan_lab("lab", cluster((name, "pi-1")))


def test_every_device_becomes_a_host_with_an_address(kept):
    lab = plan_lab("lab", cluster())

    assert [(host.name, host.address) for host in lab.hosts] == [
        ("pi-0", "10.83.0.1"), ("pi-1", "10.83.0.2"), ("pi-2", "10.83.0.3"),
    ]  # fmt: skip
    kept(hosts_text(lab))


def test_a_lab_has_room_for_253_hosts(kept):
    with pytest.raises(HeptiError) as caught:
        plan_lab("lab", cluster([f"pi-{number}" for number in range(254)]))
    kept(caught.value)


def test_the_state_file_gives_the_same_lab_back(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(labs, "RUNTIME", tmp_path)
    pair = {frozenset(("pi-0", "pi-2")): Link(240e6 / 8, 2e-4)}
    lab = calibrated(plan_lab("lab", cluster(links=pair)))
    lab.directory.mkdir()
    lab.save()

    assert load_lab("lab") == lab
    assert load_lab(None) == lab
    with pytest.raises(HeptiError) as caught:
        load_lab("labb")
    kept(caught.value)


def test_without_a_name_there_must_be_one_lab(tmp_path, monkeypatch):
    monkeypatch.setattr(labs, "RUNTIME", tmp_path)
    with pytest.raises(HeptiError, match=r"no lab is up: .*mixed4, .*pi4x4"):
        load_lab(None)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        calibrated(plan_lab(name, cluster())).save()

    with pytest.raises(HeptiError, match="which lab\\? up are: one, two"):
        load_lab(None)


def test_everything_of_a_lab_carries_its_name():
    """So that it can be found and removed without the state file; and this machine's own network sees nothing."""
    lab = plan_lab("lab", cluster())
    commands = [" ".join(command) for command in network_commands(lab)]

    assert all("hepti-lab.lab." in command for command in commands)
    assert not [command for command in commands if command.startswith("ip link")]


def test_interface_names_fit_the_kernel():
    lab = plan_lab("x" * 32, cluster([f"pi-{number}" for number in range(253)]))
    names = [command[command.index("add") + 1] for command in network_commands(lab) if command[3:5] == ["link", "add"]]

    assert names[-1] == "port253"
    assert max(map(len, names)) <= 15


def test_both_ends_of_a_cable_are_shaped():
    """By a bucket just above the largest packet, at a rate that leaves the asked payload."""
    lab = plan_lab("lab", cluster(mbps=940))
    commands = shape_commands(lab, lab.hosts[0])
    inside, port = commands[3::4]
    rate = f"{940e6 * 1514 / 1448:.0f}bit"

    assert [command[3:] for command in commands[::4]] == [
        ["link", "set", "dev", end, "gso_max_size", "32768"] for end in ("eth0", "port1")
    ]

    assert inside[:7] == ["tc", "-n", "hepti-lab.lab.pi-0", "qdisc", "replace", "dev", "eth0"]
    assert port[:7] == ["tc", "-n", "hepti-lab.lab.switch", "qdisc", "replace", "dev", "port1"]
    for command in (inside, port):
        assert command[7:] == ["root", "handle", "1:", "tbf", "rate", rate, "burst", "36864", "latency", "100ms"]


def test_at_a_scale_links_are_narrower_and_slower_to_answer():
    """So that what takes a second of the file takes two by the clock; the same bytes wait in the queue."""
    lab = dataclasses.replace(plan_lab("lab", cluster(mbps=940)), scale=0.5)
    inside, port = shape_commands(lab, lab.hosts[0])[3::4]
    (delay,) = latency_commands(lab, lab.hosts[0])

    assert f"{470e6 * 1514 / 1448:.0f}bit" in inside
    assert inside[7:] == port[7:]
    assert inside[-2:] == ["latency", "200ms"]
    assert delay[-2:] == ["delay", "400us"]


@pytest.mark.parametrize(("mbps", "at_once"), [(940, 36864), (240, 9411), (80, 4608), (10, 4608)])
def test_what_passes_at_once_after_a_pause_takes_little_of_any_wire(mbps, at_once):
    """Some 0.3 ms of the wire; three frames where that is less."""
    assert burst_of(mbps * 1e6 / 8) == at_once


def test_an_exceptional_link_gets_a_class_of_its_own():
    """Pi-0 to pi-2 at 240 Mbps; the rest, and the total, at 940."""
    pair = {frozenset(("pi-0", "pi-2")): Link(240e6 / 8, 2e-4)}
    lab = plan_lab("lab", cluster(links=pair))
    commands = [" ".join(command) for command in shape_commands(lab, lab.hosts[0])]
    slow, fast = (f"rate {mbps * 1e6 * 1514 / 1448:.0f}bit" for mbps in (240, 940))

    assert any("classid 1:11 htb" in command and slow in command for command in commands)
    assert any("classid 1:10 htb" in command and fast in command for command in commands)
    assert any("match ip dst 10.83.0.3/32 flowid 1:11" in command for command in commands)
    assert "tbf" in " ".join(shape_commands(lab, lab.hosts[1])[3])


def test_cutting_takes_the_cable_out_of_the_switch():
    lab = plan_lab("lab", cluster())

    assert connect_command(lab, lab.hosts[2], False) == [
        "ip", "-n", "hepti-lab.lab.switch", "link", "set", "port3", "down",
    ]  # fmt: skip


def test_the_agent_joins_cgroups_then_namespaces():
    from pathlib import Path

    lab = dataclasses.replace(calibrated(plan_lab("lab", cluster())), scale=0.5)
    text = agent_text(lab, Cgroups(Path("/cg/cpu"), Path("/cg/memory"), 1, 1))

    assert "pi-1) threads=1 core=0 ;;" in text
    assert "for group in /cg/cpu/hepti-lab.lab /cg/memory/hepti-lab.lab; do" in text
    assert "export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads" in text
    assert f"export HEPTI_LAB_SCALE=0.5 HEPTI_LAB_HOSTS={lab.identity}\n" in text
    assert "exec nsenter --net=/run/netns/hepti-lab.lab.$host unshare --uts --mount" in text
    text = agent_text(dataclasses.replace(lab, real_time=True), Cgroups(Path("/cg/cpu"), Path("/cg/memory"), 1, 1))
    assert (
        "echo $$ > /cg/cpu/hepti-lab.lab/$host/cgroup.procs || exit 1\nfor group in /cg/memory/hepti-lab.lab; do"
        in text
    )
    assert "exec chrt --rr 1 taskset --cpu-list $core nsenter --net=/run/netns/hepti-lab.lab.$host" in text
    assert on_host(lab, lab.hosts[1], ["echo", "a b"]) == ["/run/hepti-lab/lab/agent", "pi-1", "exec echo 'a b'"]


def test_what_is_measured_of_a_lab_is_for_no_other_whose_hosts_are_called_alike():
    """What the machine's cores do is not of it, nor is the lab's name: brought up again it is the same."""
    labs = [plan_lab(name, find_cluster(ready)) for name, ready in (("a", "pi4x4"), ("b", "mixed4"), ("c", "mixed4"))]

    even, mixed, again = (calibrated(lab).identity for lab in labs)

    assert mixed == again != even


@pytest.mark.parametrize(("gflops", "threads"), [(10, 1), (92, 1), (96, 1), (120, 2), (276, 3)])
def test_a_host_has_as_many_threads_as_cores(gflops, threads):
    host = Host("pi-0", "10.83.0.1", gflops * 1e9, 1e8, GIB, core_flop_per_s=92e9)

    assert host.threads == threads


def test_sshd_listens_on_the_host_alone_with_keys_of_its_own():
    lab = plan_lab("lab", cluster(), ssh=True)
    text = sshd_config(calibrated(lab), calibrated(lab).hosts[1], "/venv/bin:/usr/bin")

    assert "ListenAddress 10.83.0.2\n" in text
    assert "AuthorizedKeysFile /run/hepti-lab/lab/ssh/pi-1/authorized_keys\n" in text
    assert "PasswordAuthentication no\n" in text
    assert "IdentityFile /run/hepti-lab/lab/ssh/user_key\n" in ssh_config(lab)


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("cpu=25%", "cpu", 0.25),
        ("cpu=0.25", "cpu", 0.25),
        ("gflops=12.3", "cpu", 0.5),
        ("bandwidth_mbps=240", "bandwidth_bytes_per_s", 30e6),
        ("memory_gib=0.5", "memory_bytes", GIB // 2),
    ],
)
def test_settings_change_one_thing(setting, field, value):
    host = plan_lab("lab", cluster()).hosts[0]
    changed = apply_setting(host, setting)

    assert getattr(changed, field) == pytest.approx(value)
    assert dataclasses.replace(changed, **{field: getattr(host, field)}) == host


def test_bad_settings_are_refused_in_one_line(kept):
    settings = ("cpu=fast", "cpu=-1", "memory_gib=0", "bandwidth_mbps=nan", "bandwith_mbps=2")

    kept(complaints(lambda setting: apply_setting(plan_lab("lab", cluster()).hosts[0], setting), settings))


def test_lab_is_frozen():
    lab = Lab("lab", (), 0.0)

    with pytest.raises(dataclasses.FrozenInstanceError):
        lab.name = "other"


def test_a_link_is_as_fast_as_its_slower_end_or_its_exception():
    pair = {frozenset(("pi-0", "pi-2")): Link(240e6 / 8, 2e-4)}
    lab = plan_lab("lab", cluster(links=pair))
    lab = lab.with_host(dataclasses.replace(lab.hosts[1], bandwidth_bytes_per_s=333e6 / 8))

    assert lab.link_bytes_per_s(lab.hosts[2], lab.hosts[0]) == 240e6 / 8
    assert lab.link_bytes_per_s(lab.hosts[0], lab.hosts[1]) == 333e6 / 8
    assert lab.link_bytes_per_s(lab.hosts[1], lab.hosts[2]) == 333e6 / 8


@pytest.mark.parametrize("name", ["..", ".", "", "/", "a/b"])
def test_down_never_leaves_its_own_folder(name):
    with pytest.raises(HeptiError, match="lab name"):
        down(name)


def test_down_says_that_there_was_no_such_lab(tmp_path, monkeypatch, kept):
    """With code 2, as other commands do; what a crash left is no lab, and its removal is no error."""
    monkeypatch.setattr(labs, "RUNTIME", tmp_path)
    monkeypatch.setattr(lab_up, "require_tools", lambda: None)
    monkeypatch.setattr(lab_down, "down", ["pi4x4"].__contains__)
    (tmp_path / "mixed4").mkdir()
    (tmp_path / "mixed4" / "lab.json").touch()

    done, left = inside.run(main, "lab", "down", "nope"), inside.run(main, "lab", "down", "pi4x4")

    assert (done.returncode, done.stdout) == (2, "")
    kept(done.stderr)
    assert (left.returncode, left.stdout) == (0, "lab pi4x4 is down\n")


def test_a_damaged_state_file_is_named(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(labs, "RUNTIME", tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "lab.json").write_text('{"name": "la')

    with pytest.raises(HeptiError) as caught:
        load_lab("lab")
    kept(caught.value)


def test_a_lab_for_a_block_says_its_notes_and_goes_with_the_block_however_that_ends(monkeypatch, capsys):
    lab, ended = plan_lab("lab", cluster()), []
    monkeypatch.setattr(lab_up, "up", lambda planned: (calibrated(planned), [], ["this machine shares its caches"]))
    monkeypatch.setattr(lab_up, "down", ended.append)

    def interrupted():
        with lab_up.brought_up(lab) as there:
            assert there == calibrated(lab)
            assert ended == []
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert ended == ["lab"]
    assert capsys.readouterr().err == "note: this machine shares its caches\n"


@pytest.mark.parametrize(("asked", "tried"), [(None, [0.3, 0.18]), (0.3, [0.3])])
def test_cores_that_become_slower_while_a_lab_is_built_give_it_a_scale_that_fits_if_none_was_asked_for(
    monkeypatch, tmp_path, asked, tried
):
    monkeypatch.setattr(labs, "RUNTIME", tmp_path)
    monkeypatch.setattr(lab_up, "require_tools", lambda: None)
    seen = []
    monkeypatch.setattr(lab_up, "scaled", lambda lab, scale: dataclasses.replace(lab, scale=scale or 0.3))

    def measured(lab):
        seen.append(lab.scale)
        if lab.scale > 0.25:
            raise SlowCoresError("bring it up at --scale 0.28 or less", 0.28)
        return lab, [], []

    monkeypatch.setattr(lab_up, "_measured", measured)
    if asked is None:
        assert lab_up.up(plan_lab("lab", cluster()))[0].scale == 0.18
    else:
        with pytest.raises(SlowCoresError):
            lab_up.up(plan_lab("lab", cluster()), asked)
    assert seen == tried


@pytest.mark.parametrize("what", ["boot", "fill"])
def test_without_sshd_there_is_nothing_to_boot_and_no_disk_to_fill(what):
    lab = plan_lab("lab", cluster())
    do = {"boot": lab_up.boot_host, "fill": lab_up.limit_disk}[what]

    with pytest.raises(HeptiError, match=f"nothing to {what}: .*lab up --ssh"):
        do(lab, lab.hosts[0])


def test_a_lab_that_is_ended_while_it_is_looked_at_is_said_to_be(monkeypatch, tmp_path, kept):
    """Its state is there, the cgroups of its last host are gone."""
    lab, cgroups = plan_lab("lab", cluster()), Cgroups(tmp_path, tmp_path, 2, 2)
    for host in lab.hosts[:2]:
        group = cgroups.memory_group("lab", host.name)
        group.mkdir(parents=True)
        (group / "memory.current").write_text(f"{GIB}\n")
        (group / "cgroup.procs").write_text("7\n8\n")
    monkeypatch.setattr(lab_up, "machine_cgroups", lambda: cgroups)

    assert lab_up.usage(dataclasses.replace(lab, hosts=lab.hosts[:2])) == [{"processes": 2, "memory_used_gib": 1.0}] * 2
    with pytest.raises(HeptiError) as caught:
        lab_up.usage(lab)
    kept(caught.value)
