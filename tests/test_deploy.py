"""The Ansible role: what it does is tested in the lab, `tests/lab/test_install.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.thorough("ansible-lint takes half a minute, and the role changes twice a year")
def test_ansible_lint_finds_nothing(tmp_path):
    lint = [Path(sys.executable).parent / "ansible-lint", "--offline", "--strict", "--nocolor", "-q", "."]

    done = subprocess.run(
        lint, cwd=ROOT / "deploy", env={"PATH": f"{lint[0].parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
