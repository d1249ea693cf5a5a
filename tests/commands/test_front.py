"""`hepti` as a person types it: one line where something is wrong, and mpirun's own words out of the way."""

import importlib
import json
import os
import pty
import re
import select
import signal
import socket
import sys
import termios
import time
from importlib import metadata
from pathlib import Path

import pytest

from launch.front import command
from solver.base.front import CALLED
from tests.kit import inside, refusals
from tests.kit.cli_parsers import PARSERS
from tests.kit.commands import ENVIRONMENT, ROOT, run, start
from tests.kit.processes import cpu_seconds, ranks_of

# Without README's settings for one machine: `hepti` makes its own.
UNSET = ("PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_ALLOW_RUN_AS_ROOT",
         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")  # fmt: skip
HEPTI = ("env", *(word for name in UNSET for word in ("-u", name)), sys.executable, "-m", "launch.front")


def front(*words, **options):
    return run(*HEPTI, *words, **options)


def boards(model):
    """Return a model for boards that are known: measuring takes longer than all else of these tests."""
    return "--model", model, "--cluster", "pi4x4"


@pytest.fixture
def cache(tmp_path):
    """Return the variable that names a cache folder of this test's own, and the folder."""
    folder = tmp_path / "cache"
    return {"XDG_CACHE_HOME": str(folder)}, folder / "hepti"


def logs(folder):
    return sorted(folder.glob("mpirun-*.log"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_on_this_machine_needs_no_settings_and_leaves_no_log(ranks, model, cache, tmp_path):
    variables, folder = cache
    (tmp_path / "asked.jsonl").write_text('{"id": "q", "tokens": [5, 6, 7]}\n')
    words = ("--model", model, "--input", tmp_path / "asked.jsonl", "--output", tmp_path / "answers.jsonl")

    done = front("run", "--np", ranks, *words, **variables)

    assert done.returncode == 0, done.stderr
    assert f"{ranks} rank" in done.stderr
    assert "who computed what" in done.stdout
    assert json.loads((tmp_path / "answers.jsonl").read_text())["id"] == "q"
    assert logs(folder) == []


@pytest.mark.slow("four commands, each with all that it imports")
def test_files_of_the_folder_that_it_is_typed_in_are_not_taken_for_its_own(model, tmp_path, cache):
    for name in ("launch", "solver", "hepti_mpi", "weights"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    hepti = Path(sys.executable).with_name("hepti")
    plan = ("plan", "--model", "bert-base", "--cluster", "mixed4")
    for words in (plan, ("run", "--np", 2, *boards(model), "--random", 4), ("lab", "--help"), ("convert", "--help")):
        done = run("env", "-C", tmp_path, hepti, *words, **cache[0])
        assert done.returncode == 0, done.stderr


def test_lines_of_standard_input_are_answered_one_by_one(model, cache):
    with start(*HEPTI, "run", "--np", "2", *boards(model), "--input", "-", **cache[0]) as process:
        for tokens in ([5, 6], [7, 8, 9]):
            print(json.dumps({"tokens": tokens}), file=process.stdin, flush=True)
            assert json.loads(process.stdout.readline())["tokens"] == len(tokens)
        process.communicate()

    assert process.returncode == 0


@pytest.mark.parametrize("words", [["run", "--np", "2", "--model", "no.h5"], ["run", "--np", "2", "--bogus"]])
def test_mistakes_that_ranks_find_are_one_line_of_the_command_that_was_typed(words, cache, kept):
    variables, folder = cache

    done = front(*words, **variables)

    said = [line for line in done.stderr.splitlines() if not line.startswith(("note:", "2 ranks", "1 rank"))]
    assert (done.returncode, done.stdout) == (2, "")
    assert len(said) == 1, done.stderr
    kept(said[0])
    assert logs(folder) == []


class CalledHere:
    """Runs in this process what `hepti` would become: of jobs of ranks, what parses their words."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("launch.front.command.shell.become", self._become)

    def _become(self, command, variables):
        module, *words = command[command.index("-m") + 1 :]
        self._monkeypatch.setattr("solver.base.front._called", lambda: variables[CALLED])
        if module == "hepti_mpi":
            kind = [word for word in words[:1] if word in ("generate", "profile")]
            where, function = PARSERS[" ".join([module, *kind])]
            run = refusals.parsing(variables[CALLED], getattr(importlib.import_module(where), function))
            words = words[len(kind) :]
        else:
            run = importlib.import_module(PARSERS[module][0]).main
        raise SystemExit(run(words))


def test_mistakes_are_one_line_of_the_command_that_was_typed(monkeypatch, tmp_path):
    CalledHere(monkeypatch)

    refusals.check(Path(__file__).parent / "refusals" / "front.txt", {"hepti": command.main}, tmp_path)


def test_a_host_that_is_off_is_named_with_the_mend_and_the_job_has_failed(cache):
    """Nobody listens at this address of the machine's own."""
    variables, folder = cache

    done = front("run", "--hosts", "127.0.0.9,127.0.0.8", "--text", "a", **variables)

    (line,) = done.stderr.splitlines()
    (log,) = logs(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("hepti run: 127.0.0.")
    assert f"({log} has all that mpirun said)" in line
    assert log.read_text()


def test_a_name_that_is_no_hosts_is_bad_input_whatever_else_is_wrong(cache, kept):
    variables, folder = cache

    done = front("run", "--hosts", "127.0.0.9,no-such-board.invalid,nor-this.invalid", "--text", "a", **variables)

    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    kept(line)
    assert logs(folder) == []


def test_a_hostfile_run_is_not_led_astray_by_settings_for_one_machine(cache, tmp_path):
    """They would put all ranks on the first host: here both are asked for."""
    hostfile = tmp_path / "pis"
    hostfile.write_text("localhost slots=1\nno-such-board.invalid slots=1\n")

    done = run(sys.executable, "-m", "launch.front", "run", "--hostfile", hostfile, "--text", "a", **cache[0])

    assert done.returncode == 2
    assert "hepti run: no-such-board.invalid: " in done.stderr


def test_a_rank_that_never_begins_is_one_line_with_the_reason(cache, tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('mpi4py has seen better days')\n")

    done = front("run", "--np", "2", **cache[0], PYTHONPATH=str(tmp_path))

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "mpi4py has seen better days" in line


def test_a_killed_rank_is_one_line(model, cache):
    with start(*HEPTI, "run", "--np", "3", *boards(model), "--input", "-", **cache[0]) as process:
        print('{"tokens": [5, 6, 7]}', file=process.stdin, flush=True)
        process.stdout.readline()
        os.kill(ranks_of(model, 3)[1], signal.SIGKILL)
        _, stderr = process.communicate()

    said = [line for line in stderr.splitlines() if line.startswith("hepti run: ")]
    assert process.returncode == 1
    assert len(said) == 1, stderr
    assert "-----" not in stderr
    assert ranks_of(model, 0) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_output_that_cannot_be_written_is_one_line(ranks, model, cache, kept):
    command = ("sh", "-c", 'exec "$@" > /dev/full', "sh", *HEPTI)

    done = run(*command, "run", "--np", ranks, *boards(model), "--random", 5, **cache[0])

    said = [line for line in done.stderr.splitlines() if not re.match(r"note: |\d ranks? on ", line)]
    assert done.returncode == 1
    assert len(said) == 1, done.stderr
    assert ("rank 0 on " in said[0]) is (ranks == 1)
    kept(said[0].replace(socket.gethostname(), "HOST"))


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("at once", signal.SIGINT),
        ("starting", signal.SIGTERM),
        ("answering", signal.SIGINT),
        *(
            pytest.param(*pair, marks=pytest.mark.thorough("pairs of the same three moments and two signals"))
            for pair in (("at once", signal.SIGTERM), ("starting", signal.SIGINT), ("answering", signal.SIGTERM))
        ),
    ],
)
def test_what_is_interrupted_says_one_line_and_leaves_nothing(moment, number, model, cache, tmp_path):
    """A signal to `hepti` alone, as `kill` sends it."""
    variables, folder = cache
    words = (*boards(model), "--input", "-", "--output", tmp_path / "answers.jsonl")
    with start(*HEPTI, "run", "--np", "2", *words, **variables) as process:
        if moment == "at once":
            while not heeds(process.pid):
                time.sleep(0.001)
        elif moment == "starting":
            ranks_of(model, 2)
        else:
            print('{"tokens": [5, 6, 7]}', file=process.stdin, flush=True)
            process.stdout.readline()
        process.send_signal(number)
        _, stderr = process.communicate()

    said = [line for line in stderr.splitlines() if line.startswith("hepti") or "Traceback" in line or "---" in line]
    assert process.returncode == 128 + number
    assert said == ["hepti run: interrupted"]
    assert ranks_of(model, 0) == []
    assert logs(folder) == []
    assert {path.name for path in tmp_path.iterdir()} - {"cache", "model.h5", "answers.jsonl"} == set()


def heeds(pid):
    """Return whether a process is `hepti`, and has a handler of its own for SIGTERM, and so for the others."""
    mask = re.search(r"SigCgt:\s*(\S+)", Path(f"/proc/{pid}/status").read_text()).group(1)
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"launch.front" in command and int(mask, 16) >> signal.SIGTERM - 1 & 1


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words, **variables):
        self.seen = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            termios.tcsetwinsize(0, (24, 80))
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.chdir(ROOT)
            os.execvpe(str(words[0]), [str(word) for word in words], ENVIRONMENT | variables)

    def until(self, text, timeout_s=60):
        """Read until a text has come; return all that has."""
        end = time.monotonic() + timeout_s
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self._fd], [], [], 1)[0]:
                self.seen += os.read(self._fd, 1 << 16).decode(errors="replace")
        return self.seen

    def press(self, keys):
        os.write(self._fd, keys)

    def end(self):
        """Read to the end; return the exit code and all that was seen."""
        while True:
            try:
                chunk = os.read(self._fd, 1 << 16)
            except OSError:  # nobody has the terminal any more
                break
            if not chunk:
                break
            self.seen += chunk.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status), self.seen


def test_ctrl_c_on_a_terminal_is_one_line(model, cache):
    terminal = Terminal(*HEPTI, "run", "--np", "2", "--model", model, "--input", "-", **cache[0])
    terminal.until("2 ranks")
    terminal.press(b"\x03")

    code, seen = terminal.end()

    assert code == 130, seen
    assert seen.rstrip().endswith("hepti run: interrupted")
    assert "----" not in seen
    assert "Abort" not in seen
    assert ranks_of(model, 0) == []


@pytest.mark.slow("the first words wait for ranks and their libraries")
def test_a_chat_on_a_terminal_answers_word_by_word_and_ends_with_its_end(tiny, cache):
    words = ("generate", "--np", "2", *boards(tiny.path), "--chat", "--tokens", "4", "--ignore-eos")
    terminal = Terminal(*HEPTI, *words, **cache[0])
    terminal.until("> ")
    terminal.press(b"hello\n")
    terminal.until("the first after")
    terminal.press(b"\n")

    code, seen = terminal.end()

    assert code == 0, seen
    assert "say something" in seen


def test_the_version_is_that_of_the_package():
    assert inside.run(command.main, "--version").stdout == f"hepti {metadata.version('hepti')}\n"


def test_help_speaks_of_the_command_that_was_typed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    commands = ("run", "generate", "plan", "convert", "doctor", "lab", "completion")
    for words in ([], ["--help"], *([name, "--help"] for name in commands)):
        done = front(*words) if words == ["run", "--help"] else here(monkeypatch, *words)

        assert done.returncode == 0, done.stderr
        named = ["hepti", *words[:1]] if words[1:] else ["hepti", "COMMAND"]
        assert done.stdout.startswith(f"usage: {' '.join(named)}")
        assert "example" in done.stdout


def here(monkeypatch, *words):
    with monkeypatch.context() as patch:
        CalledHere(patch)
        return inside.run(command.main, *words)


def held_up(pid):
    """Return whether a process has become another program, which does not heed signals yet but holds them up."""
    mask = re.search(r"SigBlk:\s*(\S+)", Path(f"/proc/{pid}/status").read_text()).group(1)
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"launch.front" not in command and int(mask, 16) >> signal.SIGINT - 1 & 1


@pytest.mark.parametrize("words", [["plan", "--model", "bert-large", "--cluster", "mixed4", "--compare"], ["run"]])
def test_what_interrupts_while_one_program_becomes_another_is_heeded_by_that(words):
    with start(*HEPTI, *words) as process:
        while not held_up(process.pid):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()

    assert (process.returncode, stderr) == (130, f"hepti {words[0]}: interrupted\n")


@pytest.mark.parametrize(
    "moment", ["1 rank", pytest.param("computing", marks=pytest.mark.thorough("three seconds of computing"))]
)
def test_a_run_without_mpirun_is_interrupted_in_one_line_and_writes_nothing(moment, model, cache, tmp_path):
    words = ("--model", model, "--random", "500", "--repeat", "100000", "--output", tmp_path / "answers.jsonl")
    with start(sys.executable, "-m", "hepti_mpi", *words, **cache[0]) as process:
        if moment == "1 rank":
            while not process.stderr.readline().startswith("1 rank"):
                pass
        else:
            while cpu_seconds(process.pid) < 3:
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()

    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "python -m hepti_mpi: interrupted"
    assert "Traceback" not in stderr
    assert not list(tmp_path.glob("*answers*"))
