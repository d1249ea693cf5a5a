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
from jinja2 import meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from solver.base.errors import HeptiError, explained

Turn = Mapping[str, str]  # {"role": …, "content": …}
HERE = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' own, which shows where a message ends in the text of it


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
        environment = _environment()
        with explained("the chat template cannot be read", (jinja2.TemplateError, RecursionError)):
            self._template = environment.from_string(text)
            self._asked = meta.find_undeclared_variables(environment.parse(text))

    def reads(self, name: str) -> bool:
        """Return whether the template asks for something: what it does not, changes nothing."""
        return name in self._asked

    def render(
        self, messages: Sequence[Turn], settings: Mapping[str, Any] | None = None, *,
        tools: Sequence[Mapping[str, Any]] | None = None, opens: bool = True, continues: bool = False,
    ) -> str:  # fmt: skip
        """Return the text of a conversation.

        Parameters
        ----------
        messages
            From the oldest on.
        settings
            What some templates ask for besides, such as Qwen3's `enable_thinking`; they go before special tokens.
        tools
            Functions that the template shows the model.
        opens
            Whether it ends where the model's answer begins.
        continues
            Whether it ends within the last message, which the answer continues.

        Raises
        ------
        HeptiError
            If the template refuses the conversation, or fails.
        """
        seen = {"documents": None, **self._special, **(settings or {}), "tools": tools, "add_generation_prompt": opens}
        turns = [dict(message) for message in messages]
        if continues:
            turns[-1]["content"] += HERE
        # It may raise whatever Python raises.
        with explained("the chat template refuses this conversation", Exception):
            text = self._template.render(seen | {"messages": turns})
        return _cut(text, messages[-1]["content"]) if continues else text


def _cut(text: str, last: str) -> str:
    """Return the text of a conversation up to where its last message ends."""
    before, found, behind = text.rpartition(HERE.strip())
    if not found or last.strip() not in before:
        raise HeptiError("the chat template leaves out a part of the last message, which cannot be continued then")
    return before if behind.startswith(HERE[len(HERE.strip()) :]) else before.rstrip()


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
