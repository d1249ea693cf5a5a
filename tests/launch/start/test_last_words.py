"""Of all that mpirun and ssh say, the likeliest reason why a job has ended is one line."""

import pytest

from launch.start.last_words import why_ended

LONG, SHORT = "-" * 74 + "\n", "-" * 60 + "\n"


@pytest.mark.parametrize(
    "said",
    [
        f"{LONG}prterun detected that one or more processes exited\nwith code 2\n{LONG}",
        f"{LONG}PMIx could not make the\ndirectory:\n\n  Directory: /a\n  Error: no room\n\nPlease check.\n{LONG}",
        f"{SHORT}A daemon failed to report back.\n{SHORT}ImportError: no module\n",
        f"{LONG}prterun noticed that process rank 2 with PID 17 on node pi-2 exited on\nsignal 9 (Killed).\n{LONG}",
        "[pi-2:00000] *** An error occurred in Socket closed\n"
        "[pi-2:00000] ***    and MPI will try to terminate your MPI job as well)\n"
        f"{LONG}prterun has exited due to process rank 2 with PID 0 on node pi-2 calling\n"
        f'"abort". This may have caused other processes to be terminated.\n' + LONG,
    ],
    ids=["frame", "facts", "ours", "killed", "aborted"],
)
def test_the_likeliest_reason_is_one_line(said, kept):
    kept(why_ended(said, 1))


def test_without_a_word_its_exit_code_is_the_reason(kept):
    kept(f"{why_ended('', 3)}\n{why_ended('', 137)}\n{why_ended('', -9, program='launch.single')}")
