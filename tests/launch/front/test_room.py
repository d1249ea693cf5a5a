"""Disks that take nothing: what mpirun needs is said before it starts, and its noise goes without a file."""

import os
from pathlib import Path

import pytest

from launch.front import job
from solver.base.errors import HeptiError


def test_a_folder_that_takes_no_files_of_mpirun_is_named_with_the_reason(tmp_path):
    job.check_room(tmp_path)
    with pytest.raises(HeptiError, match="set TMPDIR to another") as caught:
        job.check_room(tmp_path / "none")

    assert str(tmp_path / "none") in str(caught.value)
    assert "No such file" in str(caught.value)


def test_a_full_disk_is_said_to_be_one(tmp_path, monkeypatch):
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(job.tempfile, "TemporaryFile", lambda **how: full)
        with pytest.raises(HeptiError, match="No space left"):
            job.check_room(tmp_path)


def test_mpirun_s_noise_goes_elsewhere_or_nowhere_where_its_folder_takes_no_files(tmp_path, monkeypatch):
    (tmp_path / "hepti").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, file = job._open_log()
    file.close()
    path.unlink()
    monkeypatch.setattr(job.tempfile, "gettempdir", lambda: str(tmp_path / "hepti"))
    nowhere, file = job._open_log()
    file.write(b"noise")
    file.close()

    assert path.name == f"mpirun-{os.getpid()}.log"
    assert nowhere is None
