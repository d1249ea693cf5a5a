"""What ranks say is told from what mpirun and ssh say."""

import pytest

from launch.front.sieve import ERRORS, OUTPUT, Sieve
from solver.base.front import BEGUN

FRAME = b"-" * 74 + b"\nprterun detected that one or more processes exited\nwith code 2\n" + b"-" * 74 + b"\n"
SHORT = b"-" * 60 + b"\nA daemon failed to report back.\n" + b"-" * 60 + b"\n"
BEGINS = (ERRORS, BEGUN.encode() + b"\n")


def sieved(*chunks):
    """Return what is passed on of output and errors, what is put aside, and the sieve."""
    out, aside = {OUTPUT: b"", ERRORS: b""}, []

    def take(stream, text):
        out[stream] += text

    sieve = Sieve(take, aside.append, "hepti run")
    for stream, chunk in chunks:
        sieve.take(stream, chunk)
    sieve.end()
    return out[OUTPUT], out[ERRORS], b"".join(aside), sieve


def in_pieces(chunks, size):
    return [(stream, text[at : at + size]) for stream, text in chunks for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_frames_hold_is_put_aside_in_pieces_of_any_size(size):
    chunks = [
        (ERRORS, b"Warning: permanently added pi-1\n"), BEGINS, (ERRORS, b"2 ranks\n"), (OUTPUT, b"an answer\n"),
        (ERRORS, b"[vm:123] a word of MPI\n"), (ERRORS, FRAME), (OUTPUT, SHORT), (ERRORS, b"hepti run: no\n"),
        (OUTPUT, b"- a list\n[1, 2]\nAbort is a word\n"),
    ]  # fmt: skip

    output, errors, aside, sieve = sieved(*in_pieces(chunks, size))

    assert output == b"an answer\n- a list\n[1, 2]\nAbort is a word\n"
    assert errors == b"2 ranks\nhepti run: no\n"
    assert aside == b"Warning: permanently added pi-1\n[vm:123] a word of MPI\n" + FRAME + SHORT
    assert sieve.begun
    assert sieve.complained


def test_nothing_is_passed_on_of_a_job_that_never_begins():
    output, errors, aside, sieve = sieved((OUTPUT, SHORT + b"half"), (ERRORS, b"ssh: no\n"))

    assert (output, errors) == (b"", b"")
    assert b"daemon failed" in aside
    assert b"half" in aside
    assert not sieve.begun


def test_output_that_comes_before_the_word_that_the_job_has_begun_is_passed_on_behind_it():
    assert sieved((OUTPUT, b"early\n"), BEGINS)[0] == b"early\n"


def test_a_line_without_an_end_is_passed_on_at_once():
    seen = []
    sieve = Sieve(lambda stream, text: seen.append(text), lambda line: None, "hepti run")
    for stream, chunk in (BEGINS, (OUTPUT, b"once upon"), (OUTPUT, b" a time")):
        sieve.take(stream, chunk)

    assert seen == [b"once upon", b" a time"]


def test_a_complaint_that_is_the_rest_of_a_line_does_not_count():
    assert not sieved(BEGINS, (ERRORS, b"note: hepti run: x\n"))[3].complained
