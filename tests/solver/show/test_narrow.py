"""In 80 columns every table of the planner is readable: no line is longer, no word is broken, and each is kept."""

from pathlib import Path

import pytest

from solver.cli import main
from tests.kit import inside, narrow, planned_once

COMMANDS = {
    "encoder": ["--model", "bert-base", "--layers", "2", "--cluster", "pi4,pi5"],
    "encoder in stages": ["--model", "bert-base", "--layers", "4", "--cluster", "mixed4", "--system", "pipeedge"],
    "all systems": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--compare"],
    "explained": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--without", "pi-3", "--explain"],
    "step by step": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--schedule"],
    "of one board": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--schedule", "pi-1"],
    "throughput": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--objective", "throughput"],
    "network": ["--model", "resnet18", "--cluster", "mixed4"],
    "network, explained": ["--model", "resnet18", "--cluster", "mixed4", "--explain"],
    "network, changed": ["--model", "resnet18", "--cluster", "mixed4", "--map", "--set", "pi-1.bandwidth_mbps=94.5"],
    "network, who has what": ["--model", "resnet18", "--cluster", "mixed4", "--map"],
    "network, all systems": ["--model", "resnet18", "--cluster", "mixed4", "--compare"],
    "network, step by step": ["--model", "resnet18", "--cluster", "mixed4", "--schedule"],
    "network, replicas": ["--model", "resnet18", "--cluster", "mixed4", "--objective", "throughput"],
    "language model": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4"],
    "language model, explained": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4", "--explain"],
    "language model, all systems": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4", "--compare"],
    "language model, step by step": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4", "--schedule"],
}


def words(text):
    return {word.strip(".,;:") for word in text.translate(str.maketrans("│┃", "  ")).split() if word.isprintable()}


@pytest.fixture(scope="module", autouse=True)
def _planned_once():
    with planned_once.shared():
        yield


@pytest.mark.parametrize("name", COMMANDS)
def test_in_80_columns_no_word_is_broken_and_the_tables_are_as_kept(name, monkeypatch):
    def shown(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = inside.run(main, *COMMANDS[name])
        assert done.returncode == 0, done.stderr
        return done.stdout

    in_80, wide = shown(narrow.WIDTH), shown(200)

    assert max(map(len, in_80.splitlines())) <= narrow.WIDTH
    if name != "explained":  # it says how long planning took
        narrow.check(Path(__file__).with_suffix(".txt"), name, in_80, figures=False)
    letters = {word for word in words(in_80) if any(letter.isalpha() for letter in word)}
    assert letters <= words(wide), letters - words(wide)
