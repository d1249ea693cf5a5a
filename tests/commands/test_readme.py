"""What README and docs/start.md tell a newcomer to type works, block by block, in the order of the page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page):
    return re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


README = blocks("README.md")
KNOWN = {line for block in README for line in block.splitlines()}
# Each after the set-up that the second one is. What both pages have runs once.
BLOCKS = [*README[2:], *(block for block in blocks("docs/start.md") if set(block.splitlines()) - KNOWN)]


def said(block):
    """Return the commands and options of a block, without their values."""
    return set(re.findall(r"hepti \w+|python -m \w+ [a-z]+|--[a-z][a-z-]*", block))


def marks(block):
    slow = pytest.mark.slow("runs all commands of a block of the page")
    if all(line.startswith(("hepti plan ", "#")) for line in block.splitlines()):
        return [slow, pytest.mark.thorough("tests/test_documents.py makes written plans, without a process for each")]
    if block not in README and said(block) <= said("".join(README)):
        return [slow, pytest.mark.thorough("what README has, with other values")]
    if "hepti lab" in block:
        return [slow, pytest.mark.thorough("brings a lab up")]
    return [slow]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Give a copy of the checkout with the environment that runs this test as its .venv."""
    folder = tmp_path_factory.mktemp("checkout")
    for room in ("hepti_mpi", "solver", "weights", "launch"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    activate = folder / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export PATH={activate.parent}:{Path(sys.executable).parent}:$PATH\n")
    # An installed one would start the code that it was installed of.
    hepti = activate.parent / "hepti"
    hepti.write_text('#!/bin/sh\nexec python -m launch.front "$@"\n')
    hepti.chmod(0o755)
    return folder


def test_the_first_block_is_the_two_commands():
    """`make run`, which CI runs itself, and a chat, which fetches a model."""
    commands = [line.split("#")[0].strip() for line in README[0].splitlines()]
    assert commands == ["make run", ".venv/bin/hepti generate --chat"]


@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=marks(block), id=block.splitlines()[0]) for block in BLOCKS]
)
def test_every_block_runs(block, checkout):
    if "hepti lab" in block and (os.geteuid() != 0 or shutil.which("tc") is None):
        pytest.skip("a lab needs root and tc")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))
    }
    script = f"set -eo pipefail\n{README[1]}\n{block}"

    done = subprocess.run(
        ["bash", "-c", script], cwd=checkout, env=environment, capture_output=True, text=True, timeout=240
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
