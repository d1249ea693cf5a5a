"""In 80 columns every table of the planner is readable: no line is longer, and no word is broken."""

import pytest

from solver.cli import main
from tests import inside

COMMANDS = {
    "encoder": ["--model", "bert-large", "--layers", "3", "--cluster", "mixed4"],
    "encoder in stages": ["--model", "bert-base", "--layers", "4", "--cluster", "mixed4", "--system", "pipeedge"],
    "all systems": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--compare"],
    "explained": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--explain"],
    "step by step": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--schedule"],
    "of one board": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--schedule", "pi-1"],
    "throughput": ["--model", "bert-base", "--layers", "2", "--cluster", "mixed4", "--objective", "throughput"],
    "network": ["--model", "resnet50", "--cluster", "mixed4"],
    "network, all systems": ["--model", "resnet18", "--cluster", "mixed4", "--compare"],
    "network, step by step": ["--model", "resnet18", "--cluster", "mixed4", "--schedule"],
    "network, replicas": ["--model", "resnet18", "--cluster", "mixed4", "--objective", "throughput"],
    "language model": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4"],
    "language model, all systems": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4", "--compare"],
    "language model, step by step": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4", "--schedule"],
}


def words(text):
    return {word.strip(".,;:") for word in text.translate(str.maketrans("│┃", "  ")).split() if word.isprintable()}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_word_is_broken_in_80_columns(command, monkeypatch):
    def shown(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = inside.run(main, *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    narrow, wide = shown(80), shown(200)

    assert max(map(len, narrow.splitlines())) <= 80
    letters = {word for word in words(narrow) if any(letter.isalpha() for letter in word)}
    assert letters <= words(wide), letters - words(wide)
