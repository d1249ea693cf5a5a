"""What is advised to install can be installed: Hepti is on no index."""

import re
from pathlib import Path

import pytest

from solver.base import environment as extras

ROOT = Path(__file__).parents[3]


def test_in_a_checkout_its_path_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert extras.install("plot") == "pip install -e '.[plot]'"
    monkeypatch.chdir(tmp_path)
    assert extras.install("plot") == f"pip install -e '{ROOT}[plot]'"


@pytest.mark.parametrize("extra", ["plot", "fast", "serve"])
def test_without_a_checkout_packages_are_named(monkeypatch, tmp_path, extra):
    monkeypatch.setattr(extras, "_CHECKOUT", tmp_path)
    stands = re.search(rf"^{extra} = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert extras.install(extra).startswith("pip install '")
    assert sorted(extras.packages(extra)) == sorted(f"'{name}'" for name in re.findall(r'"(.+?)"', stands[1]))


def test_nobody_names_hepti_as_if_it_were_on_an_index():
    told = [
        str(path)
        for folder in ("solver", "weights", "hepti_mpi", "launch", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md") and "'hepti[" in path.read_text()
    ]  # fmt: skip

    assert not told
