"""Hostfiles and mpirun lines."""

import socket
from pathlib import Path

import pytest

from launch.start.hostfile import HostfileEntry, clean_lines, read_hostfile
from launch.start.mpirun import IN_THE_WAY, SSH_OPTIONS, hostfile_text, mpirun_command, mpirun_environment
from launch.start.reach import is_here
from solver.base.errors import HeptiError
from tests.kit.complaints import complaints


def test_the_line_has_the_flags_that_were_measured():
    command = mpirun_command(4, 4, Path("/f"), Path("/agent"), ["python", "-m", "hepti_mpi"])
    line = " ".join(command)

    assert line.startswith("mpirun --allow-run-as-root -np 4 --hostfile /f --prtemca plm_ssh_agent /agent ")
    assert "--map-by node --bind-to none --mca pml ob1 --mca btl tcp,self " in line
    assert "--mca btl_tcp_eager_limit 8388608" in line
    assert "--mca mpi_yield_when_idle 1" in line
    assert command[-3:] == ["python", "-m", "hepti_mpi"]


def test_more_ranks_than_hosts_share_them():
    assert "node:oversubscribe" in mpirun_command(8, 4, Path("/f"), Path("/agent"), ["x"])


def test_a_written_hostfile_is_read_back(tmp_path):
    path = tmp_path / "pis"
    path.write_text(
        "# the kitchen\n" + hostfile_text(["pi-0", "pi-1"]) + "\npi-2   # old\npi-3 slots = 4 max-slots=4\n"
    )

    assert read_hostfile(path) == [
        HostfileEntry("pi-0", 1),
        HostfileEntry("pi-1", 1),
        HostfileEntry("pi-2", None),
        HostfileEntry("pi-3", 4),
    ]


def test_bad_hostfiles_are_refused_with_the_line(tmp_path, kept):
    texts = (
        "", "# nobody\n", "pi-0:1\n", "pi-0\npi-1 slots=many\n", "pi-0 slots=²\n",
        "pi-0\n-oProxyCommand=reboot slots=1\n", "pi-0 slots=0\n", "pi-0\npi-1 slot=1\n", "pi-0 cores=4\n",
        "pi-0 pi-1\n", "pi-0 slots\n",
    )  # fmt: skip
    path = tmp_path / "pis"

    def read(text):
        path.write_text(text)
        return read_hostfile(path)

    kept(complaints(read, texts))


def test_a_missing_hostfile_is_one_line(tmp_path, kept):
    with pytest.raises(HeptiError) as caught:
        read_hostfile(tmp_path / "none")
    kept(caught.value)


def test_what_readme_sets_for_one_machine_is_not_in_the_way_of_hosts(monkeypatch):
    """A person's own options of ssh stay."""
    for name in IN_THE_WAY:
        monkeypatch.setenv(name, ":oversubscribe")
    name, _ = SSH_OPTIONS
    monkeypatch.setenv(name, "-p 2222")

    environment = mpirun_environment()

    assert not {*IN_THE_WAY} & {*environment}
    assert environment[name] == "-p 2222"
    monkeypatch.delenv(name)
    assert "BatchMode=yes" in mpirun_environment()[name]


def test_an_agent_in_the_place_of_ssh_gets_none_of_its_options(monkeypatch):
    name, _ = SSH_OPTIONS
    monkeypatch.setenv(name, "-p 2222")

    assert name not in mpirun_environment(Path("/agent"))


def test_this_machine_is_itself_by_all_its_names():
    name = socket.gethostname()

    assert all(is_here(host) for host in (name, name.partition(".")[0], "localhost", "127.0.0.1"))
    assert not is_here(f"{name}-2")


@pytest.mark.parametrize(
    ("written", "host"),
    [
        (b"pi-0 slots=1\r\n# of Windows\r\n", "pi-0"),
        (b"\xef\xbb\xbfpi-0 slots=1\n", "pi-0"),
        (b"fe80::1%eth0 slots=1\n", "fe80::1%eth0"),
        (b"::1\n", "::1"),
    ],
)
def test_hostfiles_of_windows_and_addresses_are_read(tmp_path, written, host):
    """And mpirun, which reads neither CRLF nor a byte order mark, gets lines that it reads."""
    path = tmp_path / "hosts"
    path.write_bytes(written)

    assert [entry.host for entry in read_hostfile(path)] == [host]
    clean = clean_lines(path)
    assert clean is None if host != "pi-0" else clean.startswith("pi-0 slots=1\n")


def test_an_address_in_brackets_is_refused(tmp_path):
    (tmp_path / "hosts").write_text("[::1] slots=1\n")

    with pytest.raises(HeptiError, match="has brackets"):
        read_hostfile(tmp_path / "hosts")
