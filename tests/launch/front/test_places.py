"""Which words say where a job runs, and which are the job's own."""

import shlex
from pathlib import Path

from launch.front.places import StartPlace, split
from tests.kit.complaints import complaints


def test_words_of_the_job_stay_as_they_are_wherever_the_others_stand():
    words = ["--model", "m.h5", "--hosts", "pi-0,pi-1", "--text", "a b", "-c", "--np=4", "--wire", "int8", "--"]

    place, rest = split(words)

    assert place == StartPlace(("pi-0", "pi-1"), 4)
    assert rest == ["--model", "m.h5", "--text", "a b", "-c", "--wire", "int8", "--"]


def test_without_hosts_there_is_one_rank_on_this_machine():
    assert split([]) == (StartPlace((), 1), [])
    assert split(["--np", "3"]) == (StartPlace((), 3), [])


def test_a_hostfile_says_its_hosts_and_there_is_one_rank_on_each(tmp_path):
    path = tmp_path / "pis"
    path.write_text("pi-0 slots=4\npi-1\n")

    assert split(["--hostfile", str(path), "--agent", "/a"])[0] == StartPlace(("pi-0", "pi-1"), 2, path, "/a")


def test_mistakes_are_named(kept):
    lines = (
        "--hosts", "--hosts --model m.h5", "--hosts=", "--hosts a,,b", "--hosts a\\ b", "--hosts -oProxyCommand=reboot",
        "--hosts a,b,a", "--hosts a --hosts b", "--hosts a --hostfile f", "--np 0", "--np two",
        "--hostfile no-such-file",
    )  # fmt: skip

    kept(complaints(lambda line: split(shlex.split(line)), lines))


def test_the_name_of_a_file_is_a_path(tmp_path):
    (tmp_path / "f").write_text("a slots=1\n")

    assert isinstance(split(["--hostfile", str(tmp_path / "f")])[0].hostfile, Path)
