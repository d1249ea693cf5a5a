"""README, docs and what else is for readers: links lead somewhere, and commands are ones that exist."""

import argparse
import ast
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from launch.front.command import COMMANDS
from launch.front.places import split
from solver import cli as solver
from solver.cluster.named import READY
from solver.models import decoder_of, encoder_of, kind_of, network_of
from solver.plan.file import any_plan_from_json
from solver.show import pictures
from tests import sweeps
from tests.kit.cli_parsers import PARSERS

ROOT = Path(__file__).parent.parent
# Those of docs/ among themselves are checked by `make docs`, too.
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
BLOCK = re.compile(r"^ *```(?:bash|text)\n(.*?)^ *```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", flags=re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", flags=re.MULTILINE)
# Files that command lines name and that are looked at as they are parsed.
NAMED = {
    "pis": "pi-0 slots=1\n",
    **{f"../before/{package}/__main__.py": "" for package in ("solver", "weights", "hepti_mpi", "launch")},
    "PATH/dllama": "",
    "VENV/bin/python": "",
}
# What stands in the examples of plans for files of a reader's own.
OWN = {"bert-large.h5": "bert-large", "llama.h5": "llama-3.2-1b", "NET.h5": "resnet18"}
if not sweeps.ALL:
    OWN["pi4:60"] = "pi4:6"  # planning for 64 boards takes nine seconds


class ParsedError(Exception):
    """A command line was parsed; nothing else is to be done."""


def anchors(page):
    """Return the names by which headings of a page can be linked."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in HEADING.findall(page.read_text())]
    return {title.replace(" ", "-") for title in titles}


def written_commands():
    """Return (page, command line) of everything that a reader may type, without comments, pipes and prompts."""
    found = {}
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                for part in line.partition(" #")[0].split("|"):
                    part = part.partition(" > ")[0].strip()
                    if re.match(r"(hepti(?! completion)|mpirun|python -m (hepti_mpi|solver|weights|launch)) ", part):
                        found.setdefault(part, page.name)
    return [(page, line) for line, page in found.items()]


def module_and_words(line):
    """Return the module that a command line starts, and what it says to it."""
    words = shlex.split(line.replace("…", "1"))
    if words[0] == "mpirun":
        words = words[words.index("python") :]
    if words[0] == "hepti":
        command = COMMANDS[words[1]]
        module, *first = command.words
        rest = split(words[2:])[1] if command.on_hosts else words[2:]
        words = [*first, *rest]
    else:
        _, _, module, *words = words
    if module == "hepti_mpi" and words and words[0] in ("generate", "profile", "rerank"):
        return f"{module} {words[0]}", words[1:]
    return module, words


def lost_links(page):
    """Return links of a page that lead nowhere."""
    for link in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if ":" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            yield link


def test_links_lead_to_files_and_headings_that_are_there():
    assert [(page.name, link) for page in PAGES for link in lost_links(page)] == []


def mistake(line, capsys):
    """Return what is wrong with the words of a command line, which are parsed as where it runs and no further."""
    module, words = module_and_words(line)
    name, function = PARSERS[module]
    try:
        getattr(importlib.import_module(name), function)(words)
    except ParsedError:
        return None
    return capsys.readouterr().err


def test_a_written_command_is_one_that_there_is(monkeypatch, capsys, tmp_path):
    here = tmp_path / "here"
    for name, text in NAMED.items():
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.chdir(here)
    parse_args = argparse.ArgumentParser.parse_args

    def only_parse(self, *arguments, **how):
        parse_args(self, *arguments, **how)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_parse)

    wrong = [(page, line, found) for page, line in written_commands() if (found := mistake(line, capsys)) is not None]

    assert wrong == []


def written_plans():
    return [line for _, line in written_commands() if line.startswith("hepti plan ")]


def kind(line):
    """Return what a plan is asked for besides model, cluster and sizes: the options that it is written with."""
    return frozenset(word for word in shlex.split(line) if word.startswith("--")) - {"--rows", "--prompt", "--tokens"}


def few_plans():
    """Return as few written plans as have every option at least once."""
    few, seen = [], set()
    for line in sorted(written_plans(), key=len):
        if kind(line) - seen:
            few.append(line)
            seen |= kind(line)
    return few


@pytest.mark.slow("plans, prices and draws for some dozen boards")
def test_a_written_plan_is_made(monkeypatch, capsys, tmp_path):
    """Plans need no boards: all of them are made, priced and drawn; in `make test` as many as have every option."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pis.toml").write_bytes((READY / "mixed4.toml").read_bytes())
    assert solver.main(["--model", "resnet18", "--cluster", "mixed4", "--out", "plan.json"]) == 0
    capsys.readouterr()
    # Four points of a map for 35.
    monkeypatch.setattr(pictures, "MAP_MBPS", (240, 940))
    monkeypatch.setattr(pictures, "MAP_MEMORY", (0.5, 1))
    wrong = []

    for line in written_plans() if sweeps.ALL else few_plans():
        words = [OWN.get(word, word) for word in shlex.split(line)[2:]]
        code, said = solver.main(words), capsys.readouterr()
        files = [word for word in words if word.endswith((".svg", ".json"))]
        if code or not said.out or not all((tmp_path / file).exists() for file in files):
            wrong.append((line, code, said.err))

    assert wrong == []


def named(name):
    """Return the model that goes by a name."""
    kind = kind_of(name)
    return (
        network_of(name)
        if kind == "network"
        else encoder_of(name, None)
        if kind == "encoder"
        else decoder_of(name, None)[0]
    )


def test_a_plan_file_that_is_shown_is_read_and_fits_its_model():
    blocks = [block for page in PAGES for block in re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)]
    plans = [block for block in blocks if '"hepti-plan/' in block]

    assert len(plans) >= 5
    for text in plans:
        plan = any_plan_from_json(text)
        plan.check(named(json.loads(text)["model"]["name"]), len(plan.devices))


def test_the_codes_of_refusals_are_those_that_the_service_has():
    """Each is a text of the service: the fourth argument of an error, what it is chosen among, or `code_of`'s."""
    section = (ROOT / "docs/http.md").read_text().partition("## Refusals")[2].partition("\n## ")[0]
    table = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    written = {code for cell in table for code in re.findall(r"`([a-z_]+)`", cell)}
    texts, given = set(), set()
    for path in [*(ROOT / "launch/serve").glob("*.py"), *(ROOT / "launch/api").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                texts.add(node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ApiError":
                codes = [*node.args[3:4], *(word.value for word in node.keywords if word.arg == "code")]
                given |= {part.value for code in codes for part in ast.walk(code) if isinstance(part, ast.Constant)}

    assert given
    assert given <= written <= texts
