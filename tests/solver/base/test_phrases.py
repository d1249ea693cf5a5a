"""Words and progress for people."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from solver.base.phrases import counted, did_you_mean, excerpt, mbps, percent, printable
from solver.base.progress import progress


@pytest.mark.parametrize(("number", "words"), [(0, "0 sub-blocks"), (1, "1 sub-block"), (2, "2 sub-blocks")])
def test_one_is_no_plural(number, words):
    assert counted(number, "sub-block") == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  few\nwords", "a few words"),
        ("one two three four five", "one two three …"),
        ("中" * 30, "中" * 15 + " …"),
        ("a " + "b" * 30, "a " + "b" * 13 + " …"),
        ("a" * 17, "a" * 17),
        ("", ""),
    ],
)
def test_a_long_text_is_cut_between_words_where_there_are_some(text, words):
    assert excerpt(text, 17) == words


def test_only_what_a_terminal_obeys_is_written_otherwise():
    """Persian and families of emoji are joined by what Python does not count among the printable."""
    assert printable("\x1b[1m a\n\x9b é 中 می\u200cخ 👩\u200d👧") == "\\x1b[1m a\\n\\x9b é 中 می\u200cخ 👩\u200d👧"


@pytest.mark.parametrize(
    ("part", "words"), [(4.92, "490 %"), (0.0123, "1.2 %"), (3.14e-4, "0.031 %"), (2e-7, "0.00002 %"), (0.0, "0 %")]
)
def test_percent_are_written_without_exponents(part, words):
    assert percent(part) == words


def test_links_are_as_fast_as_the_slowest_to_the_fastest():
    """Three digits: what is measured is no more exact."""
    assert mbps([940.0, 239.6, 939.0]) == "240 to 940 Mbps"
    assert mbps([2351.0, 2354.0]) == "2350 Mbps"
    assert mbps([0.5]) == "0.5 Mbps"


@pytest.mark.parametrize("stderr", [True, False])
def test_long_work_says_how_far_it_is_on_stderr_where_there_is_no_terminal(stderr, monkeypatch):
    monkeypatch.setattr("solver.base.progress._LINE_S", -1.0)
    console = Console(stderr=stderr, file=StringIO(), force_terminal=False)

    with progress("mapping", 25, console=console, unit="plans") as advance:
        for _ in range(25):
            advance(1)

    lines = [f"mapping: {10 * tenth} %" for tenth in range(1, 11)]
    assert console.file.getvalue().splitlines() == (lines if stderr else [])


def test_short_work_says_nothing(capsys):
    with progress("mapping", 2, unit="plans") as advance:
        advance(2)

    assert capsys.readouterr() == ("", "")


def test_who_mistypes_is_told_the_nearest_word_or_all(kept):
    known = ["megatron", "pi-0", "pi-1", "pi-2"]

    kept("\n".join(did_you_mean(word, known) for word in ("mgatron", "pi-7", "xyz")))
    assert did_you_mean("xyz", []) == ""
