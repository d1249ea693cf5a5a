"""`python -m launch bench compare …` of a language model: what a person types besides, and sees."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.base.plot import PlottedCurve, draw
from launch.base.tables import show, tell
from launch.bench.decode import SINGLE, Ours, Rival, compete, fastest, report_facts, row_name, tasks
from launch.bench.decode_peers import MODES, Dllama, LlamaCpp
from launch.compare.model import BenchDecoder, bench_decoder, exported
from launch.compare.show import Cells
from launch.compare.stage import host_count, lab_of
from launch.compare.suite import Keep, Report, at_least, say
from launch.lab import run as lab_run
from launch.lab.lab import Lab
from launch.lab.up import require_tools
from launch.single.command import RUNTIMES
from launch.start.last_words import why_ended
from solver.base.clock import at_scale
from solver.base.errors import HeptiError
from solver.base.phrases import counted, did_you_mean, mbps
from solver.model.decoder import blocks_of
from solver.model.kinds.attention import CACHES, Attention
from solver.model.kinds.weight import PRECISIONS
from solver.plan.plan import WIRES
from solver.systems.decoders import SYSTEMS

DLLAMA, LLAMACPP = "dllama", "llamacpp"
PEERS = (DLLAMA, LLAMACPP)
NONE = "none"
OURS = (*SYSTEMS, NONE)
PEER_PRECISION = "int4"  # Q40 there, Q4_0 there: what both read
# Options of other models alone, as they are where nobody gives them.
OTHERS: Mapping[str, object] = {
    "rows": None, "warmup": None, "against": None, "hostfile": None, "backends": ("auto",), "singles": (*RUNTIMES,),
}  # fmt: skip
OWN = ("prompt", "tokens", "context", "cache", "lookup", "boards", "peer")  # options
USUAL = ("hepti", "megatron", SINGLE)
PROMPT, TOKENS, CACHE, LOOKUP = 64, 32, "float32", "off"
USUALLY: Mapping[str, object] = {
    "systems": USUAL, "precisions": (PEER_PRECISION,), "prompt": PROMPT, "tokens": TOKENS, "cache": CACHE,
    "lookup": LOOKUP, "peer": (), "repeat": 1,
}  # fmt: skip


def _peer(text: str) -> tuple[str, Path]:
    """Read NAME=PATH, for argparse."""
    name, sign, place = text.partition("=")
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f"there is no peer {name!r}{did_you_mean(name, PEERS)}")
    if not sign or (program := shutil.which(place)) is None:
        raise argparse.ArgumentTypeError(f"{name} needs a program, {name}=PATH: there is none at {place!r}")
    return name, Path(program).absolute()


def _counts(text: str) -> tuple[int, ...]:
    """Read numbers of boards, for argparse."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} are not numbers of boards, as 1,2,4")
    return tuple(dict.fromkeys(map(int, words)))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only language models have, with None where they are not given."""
    own = parser.add_argument_group("language models")
    own.add_argument("--prompt", type=int, metavar="S", help=f"its tokens (default: {PROMPT})")
    own.add_argument("--tokens", type=int, metavar="N", help=f"of an answer (default: {TOKENS})")
    own.add_argument("--context", type=int, metavar="C", help="room for so many (default: prompt and answer)")
    own.add_argument("--cache", choices=CACHES, help=f"keys and values (default: {CACHE})")
    text = f"of our systems: random weights repeat themselves, and lookup gains more than a text's (default: {LOOKUP})"
    own.add_argument("--lookup", choices=(LOOKUP, "auto"), help=text)
    text = "numbers of boards; 1 is the fastest, others are the first (default: 1, 2, 4, … and all)"
    own.add_argument("--boards", type=_counts, metavar="A,B,…", help=text)
    text = f"{DLLAMA}=PROGRAM, {LLAMACPP}=PYTHON in which llama-cpp-python is installed; both read {PEER_PRECISION}"
    own.add_argument("--peer", type=_peer, action="append", metavar="NAME=PATH", help=text)


def _check(options: argparse.Namespace) -> None:
    """Refuse what is for other models, and put what is usual in the place of what was not said."""
    at_least(options, layers=1, prompt=2, tokens=2, context=1)
    for name, usual in OTHERS.items():
        if getattr(options, name) != usual:
            raise HeptiError(f"--{name} is for other models, {options.model} is a language model: leave it out")
    for name, value in USUALLY.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    for word in options.systems:
        if word not in OURS:
            raise HeptiError(f"--systems: {word} plans no language models, as {options.model} is one")
    for word in options.wires:
        if word not in WIRES:
            raise HeptiError(f"--wires: {word} is for an encoder's stages, {options.model} sends {', '.join(WIRES)}")
    if len(options.precisions) > 1 or options.precisions[0] not in PRECISIONS:
        named = ",".join(options.precisions)
        raise HeptiError(f"--precisions {named}: a language model is in one, of {', '.join(PRECISIONS)}")


def measure(options: argparse.Namespace, files: Path, keep: Keep) -> Report:
    """Measure a language model; as `Suite.measure`."""
    _check(options)
    (precision,), peers = options.precisions, dict(options.peer)
    if peers and precision != PEER_PRECISION:
        raise HeptiError(f"--peer {min(peers)} reads {PEER_PRECISION}, --precisions is {precision}")
    systems = () if options.systems == (NONE,) else options.systems
    if NONE in systems or not (systems or peers):
        raise HeptiError(f"--systems {NONE} measures peers alone: name no system, and a --peer")
    hosts = host_count(options.cluster)
    require_tools()
    model = bench_decoder(options.model, options.layers, precision)
    task = tasks(model.model, options.prompt, options.tokens, options.context, options.repeat)
    boards = _powers(hosts) if options.boards is None else options.boards
    if max(boards) > hosts:
        raise HeptiError(f"--boards has {max(boards)}, {options.cluster} has {hosts}")
    of_peers = {name: exported(model, ".m" if name == DLLAMA else ".gguf") for name in peers}
    with lab_of(options.cluster) as lab:
        rivals: list[Rival] = []
        if systems:
            say("measuring the hosts")
            profile = _profile(lab, model, files)
            rivals += _ours(lab, model, systems, boards, options, profile)
        theirs, absent = _peers(lab, model, peers, of_peers, boards)
        rivals += theirs
        facts = report_facts(lab, model, task, options.cache, options.lookup, options.runs)
        report: Report = {}

        def keep_so_far(rows: list[dict[str, Any]], rounds: int) -> None:
            for rival in rivals:
                facts["versions"] |= getattr(rival.runner, "versions", {})
            report.update({**facts, "runs": rounds, "results": rows, "absent": absent})
            keep(report)

        compete(lab, rivals, absent, task, options.runs, files, say, keep_so_far)
    return report


def _powers(hosts: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on, and all hosts.

    Examples
    --------
    >>> _powers(5)
    (1, 2, 4, 5)
    """
    return (*(2**number for number in range(hosts.bit_length()) if 2**number < hosts), hosts)


def _profile(lab: Lab, model: BenchDecoder, files: Path) -> Path:
    """Measure all hosts with the kernels of the model."""
    path, log = files / "profile.toml", files / "profile.log"
    program = [sys.executable, "-m", "hepti_mpi", "profile", "--model", str(model.path), "--out", str(path)]
    if code := lab_run.run(lab, len(lab.hosts), program, log):
        raise HeptiError(why_ended(log.read_text(errors="replace"), code))
    return path


def _ours(
    lab: Lab,
    model: BenchDecoder,
    systems: Sequence[str],
    boards: Sequence[int],
    options: argparse.Namespace,
    profile: Path,
) -> list[Rival]:
    """Return our systems on all numbers of boards, over all wires; `single` on the fastest board."""
    found = []
    for system in systems:
        for count in (1,) if system == SINGLE else [count for count in boards if count > 1]:
            hosts = fastest(lab, count)
            for wire in ("float32",) if count == 1 else options.wires:
                runner = Ours(system, model, lab, hosts, profile, wire, options.cache, options.lookup)
                name = f"{system}:{hosts[0].name}" if count == 1 else system
                found.append(Rival(name, count, runner, "" if count == 1 else wire))
    return found


def _peers(
    lab: Lab, model: BenchDecoder, peers: Mapping[str, Path], files: Mapping[str, Path], boards: Sequence[int]
) -> tuple[list[Rival], list[dict[str, Any]]]:
    """Return the peers on all numbers of boards that they can use, and why not on others."""
    found, absent = [], []
    if DLLAMA in peers:
        most = blocks_of(model.model, Attention)[0].kv_heads
        for count in boards:
            if count & (count - 1) or count > most:
                why = f"runs on 1, 2, 4, … boards, at most {counted(most, 'key and value head')}"
                absent.append(
                    {"system": DLLAMA, "backend": DLLAMA, "wire": "", "mode": "", "devices": count, "why": why}
                )
                continue
            for mode in MODES if count > 1 else ("",):
                runner = Dllama(peers[DLLAMA], files[DLLAMA], lab, fastest(lab, count), mode)
                found.append(Rival(DLLAMA, count, runner))
    if LLAMACPP in peers and 1 in boards:
        found.append(Rival(LLAMACPP, 1, LlamaCpp(peers[LLAMACPP], files[LLAMACPP], lab, fastest(lab, 1)[0])))
    return found, absent


def print_tables(report: Report) -> None:
    """Print tokens a second, the time of the prompt, ratios, and who is not there."""
    of, over = heading(report), _best(report)
    for title, cells in (
        ("tokens", decode_cells),
        ("the prompt", prompt_cells),
        (f"how many times as fast {over} is (quartiles)", ratio_cells),
    ):
        show(f"{of}; {title}", *cells(report))
    if report["absent"]:
        rows = [[row_name(entry), str(entry["devices"]), entry["why"]] for entry in report["absent"]]
        show("Not in the tables", ["system", "boards", "why"], rows)
    done, asked = report["runs"], report["runs_asked"]
    so_far = "" if done == asked else f"{done} of "
    tell(f"Medians and quartiles of {so_far}{counted(asked, 'round')}, ratios within a round.")
    tell(f"Same: so many first tokens as of {over}.")
    tell("Overhead: ms of a token beyond its share of its family's one board, of even boards.")
    tell("dllama spins or blocks while it waits; its prompt is without the step that chooses a token.")


def heading(report: Report) -> str:
    """Return what was measured where."""
    sizes = f"{report['prompt']} + {report['tokens']} tokens"
    room = "" if report["context"] == report["prompt"] + report["tokens"] else f", context {report['context']}"
    where = f"{report['cluster']}{at_scale(report['lab_scale'])}, {mbps(report['mbps'])}"
    layers = counted(report["layers"], "layer")
    return f"{report['model']} {report['precision']}, {layers}, {sizes}{room} on {where}"


def decode_cells(report: Report) -> Cells:
    """Return the table of tokens."""
    columns = ["system", "boards", "tokens/s", "quartiles", "predicted", "same"]
    rows = [
        [
            row_name(row),
            str(row["devices"]),
            f"{row['tokens_per_s']:.2f}",
            f"{1 / row['high_s']:.2f}-{1 / row['low_s']:.2f}",
            "-" if row["predicted_s"] is None else f"{1 / row['predicted_s']:.2f}",
            str(row["same_ids"]),
        ]
        for row in report["results"]
    ]
    return columns, rows


def prompt_cells(report: Report) -> Cells:
    """Return the table of the prompt."""
    columns = ["system", "boards", "prompt tokens/s", "first s", "quartiles", "predicted s"]
    rows = [
        [
            row_name(row),
            str(row["devices"]),
            f"{row['prompt_per_s']:.1f}",
            f"{row['first_median_s']:.2f}",
            f"{row['first_low_s']:.2f}-{row['first_high_s']:.2f}",
            "-" if row["predicted_first_s"] is None else f"{row['predicted_first_s']:.2f}",
        ]
        for row in report["results"]
    ]
    return columns, rows


def ratio_cells(report: Report) -> Cells:
    """Return the table of ratios to the first on most boards."""
    rows = [
        [
            row_name(row),
            str(row["devices"]),
            _ratio(row["ratio"]),
            _ratio(row["prompt_ratio"]),
            "-" if row["overhead_s"] is None else f"{1e3 * row['overhead_s']:.1f}",
        ]
        for row in report["results"]
    ]
    return ["system", "boards", "tokens", "prompt", "overhead ms"], rows


def _ratio(of: Sequence[float]) -> str:
    low, median, high = of
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def _best(report: Report) -> str:
    """Return the name of whom ratios are to: the first on most boards."""
    row = max(report["results"], key=lambda row: int(row["devices"]))
    return f"{row_name(row)} on {row['devices']}"


def draw_picture(report: Report, _: Path, out: Path) -> None:
    """Draw tokens a second, and the prompt's, over the number of boards."""
    panels = [
        (title, "boards", [_curve(report, name, key) for name in dict.fromkeys(map(row_name, report["results"]))])
        for title, key in (("tokens", "tokens_per_s"), ("the prompt", "prompt_per_s"))
    ]
    draw(heading(report), panels, "tokens a second", out / "decode.png")


def _curve(report: Report, name: str, key: str) -> PlottedCurve:
    own = sorted((row["devices"], row[key]) for row in report["results"] if row_name(row) == name)
    return PlottedCurve(name, [boards for boards, _ in own], [rate for _, rate in own])
