"""Chat templates: the text that a model was trained to read of a conversation.

A template is a stranger's program in jinja2. It runs in the sandbox, and sees what it sees in transformers
(`utils/chat_template_utils.py`). The only address of jinja2.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from solver.base.errors import explained

Turn = Mapping[str, str]  # {"role": …, "content": …}


class ChatTemplate:
    """A model's chat template.

    Parameters
    ----------
    text
        Of the template.
    special
        The texts of special tokens by the names that templates use: bos_token, eos_token, …

    Raises
    ------
    HeptiError
        If it is no template.
    """

    def __init__(self, text: str, special: Mapping[str, str]) -> None:
        self._special = dict(special)
        with explained("the chat template cannot be read", (jinja2.TemplateError, RecursionError)):
            self._template = _environment().from_string(text)

    def render(self, messages: Sequence[Turn], settings: Mapping[str, Any] | None = None) -> str:
        """Return the text of a conversation, which ends where the model's answer begins.

        Parameters
        ----------
        messages
            From the oldest on.
        settings
            What some templates ask for besides, such as Qwen3's `enable_thinking`.

        Raises
        ------
        HeptiError
            If the template refuses the conversation, or fails.
        """
        seen = {"tools": None, "documents": None, **(settings or {}), **self._special, "add_generation_prompt": True}
        # It may raise whatever Python raises.
        with explained("the chat template refuses this conversation", Exception):
            return self._template.render(seen | {"messages": [dict(message) for message in messages]})


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": _Names,
        "dict": lambda *pairs, **names: dict(*pairs, **names),
    }
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; it says nothing of the text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> Scope:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Names(Namespace):
    """jinja2's namespace, but what begins with an underscore is not stored: so a template could leave the sandbox."""

    def __init__(*arguments: Any, **names: Any) -> None:
        # Without a name for the namespace itself: `namespace(self=…)` is allowed.
        _check_names(dict(*arguments[1:], **names))
        Namespace.__init__(*arguments, **names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_names((name,))
        super().__setitem__(name, value)


def _check_names(names: Iterable[Any]) -> None:
    for name in names:
        if str(name).startswith("_"):
            raise jinja2.TemplateError(f"a namespace may not store {name!r}")


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **how: Any) -> str:
    """Write JSON without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **how)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
