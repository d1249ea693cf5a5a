"""`python -m tests.completions`: writes what shells complete of `hepti`, as shtab makes it of today's parsers.

Made here and kept in `launch/front/completion`, since no package of ours may know the parsers of all.
"""

import argparse
import importlib
from pathlib import Path

import shtab

from launch.front.command import COMMANDS, SHELLS
from launch.front.places import OPTIONS
from tests.kit.cli_parsers import PARSERS, CapturedError, captured

FOLDER = Path(__file__).parents[1] / "launch" / "front" / "completion"
# What the names of values say that are paths.
PATHS = (".", "FILE", "DIR", "FOLDER", "CHECKPOINT", "PATH")


def parser_of(words):
    """Return the parser that reads what follows these words."""
    module, *rest = words
    name = " ".join(words) if " ".join(words) in PARSERS else module
    path, function = PARSERS[name]
    try:
        with captured():
            getattr(importlib.import_module(path), function)([])
    except CapturedError as found:
        parser = found.parser
    for word in rest if name == module else ():
        (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = subparsers.choices[word]
    return parser


def whole():
    """Return one parser of all commands."""
    root = argparse.ArgumentParser(prog="hepti")
    root.add_argument("--version", action="store_true", help="say which this is")
    commands = root.add_subparsers()
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.about)
        parser = commands.choices[name] = parser_of(command.words)
        if command.on_hosts:
            for option in OPTIONS:
                parser.add_argument(option, metavar="F" if option in ("--hostfile", "--agent") else "WORD")
        mark_paths(parser)
    commands.add_parser("completion", help="print what a shell completes of these").add_argument(
        "shell", choices=SHELLS
    )
    return root


def mark_paths(parser):
    """Let shells complete paths where values are paths."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                mark_paths(inner)
        elif action.type is Path or any(word in str(action.metavar) for word in PATHS):
            action.complete = shtab.FILE


def script(shell):
    """Return what a shell reads."""
    return shtab.complete(whole(), shell)


if __name__ == "__main__":
    for shell in SHELLS:
        (FOLDER / f"hepti.{shell}").write_text(script(shell))
