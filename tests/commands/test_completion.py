"""What shells complete of `hepti`."""

import re
import subprocess

import pytest

from launch.front import command
from launch.front.command import COMMANDS, SHELLS
from tests.completions import FOLDER, script
from tests.kit import inside

OPTION = re.compile(r"--[a-z][a-z-]*")


def completed(*words):
    """Return what bash offers for the last of these words."""
    lines = [
        f"source {FOLDER / 'hepti.bash'}",
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}",
        "$(complete -p hepti | sed 's/.*-F \\([^ ]*\\).*/\\1/')",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    bash = ["bash", "--norc", "-c", "\n".join(lines)]
    return subprocess.run(bash, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_kept_has_the_options_that_there_are(shell):
    """Where this fails, `python -m tests.completions` makes it right."""
    kept = set(OPTION.findall((FOLDER / f"hepti.{shell}").read_text()))

    assert kept == set(OPTION.findall(script(shell)))


def test_bash_completes_commands():
    assert set(COMMANDS) <= set(completed("hepti", "''"))
    assert completed("hepti", "inst") == ["install"]


def test_bash_completes_options_of_a_command():
    assert completed("hepti", "run", "--hostf") == ["--hostfile"]
    assert completed("hepti", "install", "--dry") == ["--dry-run"]
    assert completed("hepti", "lab", "st") == ["status"]


def test_hepti_prints_it():
    done = inside.run(command.main, "completion", "bash")

    assert (done.returncode, done.stdout) == (0, (FOLDER / "hepti.bash").read_text())
