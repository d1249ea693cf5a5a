"""In 80 columns what is said of weights files is readable: each kind is kept as it is."""

import re
from pathlib import Path

import pytest

from tests.kit import narrow
from weights.cli import main

KINDS = {
    "encoder": ("minilm-l6", "--layers", "2"),
    "network": ("resnet18",),
    "language model": ("smollm2-135m", "--precision", "int4", "--layers", "3"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_file_holds(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(narrow.WIDTH))
    monkeypatch.chdir(tmp_path)
    assert main(["synthesize", KINDS[kind][0], "model.h5", *KINDS[kind][1:]]) == 0
    capsys.readouterr()

    assert main(["inspect", "model.h5"]) == 0

    # Two machines made int4 blocks of other fingerprints from the same seed.
    out = re.sub(r"\b[0-9a-f]{16}\b", "0123456789abcdef", capsys.readouterr().out)
    narrow.check(Path(__file__).with_suffix(".txt"), kind, out)
