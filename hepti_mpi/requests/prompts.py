"""What a language model is asked: texts, token ids and conversations, from the command line, files and standard input.

A line of a file or of standard input is one of

    {"id": 1, "prompt": "Once upon a time"}
    {"id": 2, "tokens": [12, 5, 83]}
    {"id": 3, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}

and may say besides how it is to be answered: `Wishes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.inputs import LineReader, check_ids, check_keys, check_unicode, named_entry
from hepti_mpi.requests.sampling import CANDIDATES, Sampling
from hepti_mpi.requests.service_lines import Complaint, ServiceLines
from hepti_mpi.requests.stdin import read_lines
from solver.base.errors import HeptiError, explained
from solver.model.decoder import Decoder
from weights.inputs.json_grammar import JsonGrammar, JsonGrammars, check_model
from weights.inputs.templates import ChatTemplate, Turn
from weights.inputs.tokenize import PromptTokenizer

ROLES = ("system", "user", "assistant")  # that chat templates know
EXAMPLE = '{"id": 1, "prompt": "…"}'


@dataclass(frozen=True, slots=True)
class Wishes:
    """How one prompt is to be answered.

    Parameters
    ----------
    ending, sampling
        What ends the answer, and how its tokens are chosen.
    said
        Tokens of the answer that were made before, by ranks that are gone since: it goes on after them.
    logprobs
        How many of the likeliest tokens are told with every token, and its own logarithm of probability; None: nothing.
    prompt_logprobs
        The same of the prompt's own tokens after the first, told with the answer; None: nothing.
    stream
        Whether every token is told as it comes.
    grammar
        Of answers that are JSON: which tokens may come after those said. It is one answer's, and goes on with it.

    Raises
    ------
    HeptiError
        If so many likeliest tokens are not to be had.
    """

    ending: Ending
    sampling: Sampling
    said: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream: bool = False
    grammar: JsonGrammar | None = None

    def __post_init__(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None and not 0 <= count <= CANDIDATES:
                raise HeptiError(f"{name} is {count}, must be 0 to {CANDIDATES}")
        if self.prompt_logprobs is not None and self.grammar is not None:
            raise HeptiError("prompt_logprobs goes with no schema: ask for one of them")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an answer continues."""

    id: str | int
    tokens: tuple[int, ...]
    text: str = ""  # that the tokens are of; empty where they came as ids
    wishes: Wishes | None = None  # None: as all prompts are answered that say nothing of it
    line: int = field(default=0, compare=False)  # on which it stands


# What a line may say of how it is answered: of which type that is.
WISHES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "max_tokens": ((int,), "an integer"),
    "temperature": ((int, float), "a number"),
    "top_p": ((int, float), "a number"),
    "top_k": ((int,), "an integer"),
    "seed": ((int,), "an integer"),
    "stop": ((list,), "a list of strings"),
    "ignore_eos": ((bool,), "true or false"),
    "said": ((list,), "a list of tokens"),
    "logprobs": ((int,), "an integer"),
    "prompt_logprobs": ((int,), "an integer"),
    "stream": ((bool,), "true or false"),
    "schema": ((dict,), "a JSON schema, as an object"),
}


class PromptReader:
    """Turns texts, ids and conversations into prompts that the model can take.

    Parameters
    ----------
    model
        The model.
    context
        The longest prompt, in tokens: what the cache holds.
    tokenizer
        The model's; None: token ids only.
    template
        The model's; None: no conversations.
    complain
        Takes what is wrong with a line that is left out; the others are still answered.
    usual
        How prompts are answered that do not say it.
    by_id
        Whether answers are found by their ids, so that none may come twice; else an id is only an echo.
    """

    def __init__(
        self,
        model: Decoder,
        context: int,
        tokenizer: PromptTokenizer | None,
        template: ChatTemplate | None,
        complain: Callable[[Complaint], object],
        usual: Wishes,
        *,
        by_id: bool = True,
    ) -> None:
        self._usual = usual
        self._model = model
        self._context = context
        self._tokenizer = tokenizer
        self._template = template
        self._grammars: JsonGrammars | None = None  # of 128 k tokens made in half a second, where somebody asks
        self._reader = LineReader[Prompt](complain, by_id=by_id)

    def texts(self, texts: Iterable[str]) -> list[Prompt]:
        """Make prompts of texts given on the command line, numbered from 1 on.

        Raises
        ------
        HeptiError
            If one of them is empty, or longer than the context.
        """
        return [self._text(number, text) for number, text in enumerate(texts, start=1)]

    def random(self, tokens: int) -> Prompt:
        """Make a prompt of so many random tokens, always the same.

        Raises
        ------
        HeptiError
            If there are none, or it is longer than the context.
        """
        if tokens < 1:
            raise HeptiError(f"--random is {tokens}, a prompt has 1 token at least")
        ids = np.random.default_rng(0).integers(self._model.vocab, size=tokens)
        return self._fitting(Prompt("random", tuple(ids.tolist())))

    def conversation(self, messages: Sequence[Turn], name: str | int = "chat") -> Prompt:
        """Make the prompt of a conversation, which its answer continues.

        Raises
        ------
        HeptiError
            If the model has no template, its template refuses the conversation, or it is longer than the context.
        """
        if self._template is None:
            raise HeptiError(f"the weights of {self._model.name} came without a chat template: give a prompt as text")
        return self._encoded(name, self._template.render(messages), bos=None)

    def file(self, path: Path) -> Iterator[Prompt]:
        """Yield the prompts of a `.jsonl`, one a line.

        Raises
        ------
        HeptiError
            If the file cannot be read at all; what is wrong with one line goes to `complain`.
        """
        if path.suffix != ".jsonl":
            raise HeptiError(f"--input {path}: not a .jsonl of lines like {EXAMPLE}, nor - for standard input")
        with explained(f"cannot read --input {path}", OSError), path.open("rb") as lines:
            yield from self._reader.of(enumerate(lines, start=1), path.name, self._json)

    def standard_input(self, lines: ServiceLines) -> Iterator[Prompt]:
        """Yield the prompts of JSON lines on standard input, each as soon as it is there."""
        return self._reader.of(lines.of(read_lines()), "standard input", self._json)

    def _json(self, number: int, line: bytes) -> Prompt:
        name, entry = named_entry(number, line, EXAMPLE)
        kinds = {"prompt": self._text, "tokens": self._tokens, "messages": self._messages}
        given = [key for key in kinds if key in entry]
        if len(given) != 1:
            raise HeptiError(f"one of prompt, tokens and messages is needed, it has {' and '.join(given) or 'none'}")
        check_keys(entry, given, WISHES, kinds)
        prompt = kinds[given[0]](name, entry[given[0]])
        wishes = self._wishes(entry) if WISHES.keys() & entry.keys() else None
        if wishes is not None and entry.get("max_tokens") is not None:
            self._check_room(len(prompt.tokens), wishes.ending.tokens)
        return replace(prompt, wishes=wishes, line=number)

    def _wishes(self, entry: Mapping[str, Any]) -> Wishes:
        """Return how a line is to be answered: as it says, else as usual."""
        said = {key: entry[key] for key in WISHES if entry.get(key) is not None}
        for key, value in said.items():
            types, name = WISHES[key]
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise HeptiError(f"{key} is {value!r}, must be {name}")
        if not all(isinstance(stop, str) for stop in said.get("stop", ())):
            raise HeptiError("stop must be a list of strings")
        before = said.pop("said", [])
        if before:
            check_ids(before, self._model.name, self._model.vocab)
        ending, sampling = self._usual.ending, self._usual.sampling
        eos = self._model.eos if said.get("ignore_eos") is False else ending.eos
        ending = Ending(
            tokens=said.get("max_tokens", ending.tokens),
            eos=() if said.get("ignore_eos") else eos,
            stops=said.get("stop", ending.stops),
        )
        if ending.stops and self._tokenizer is None:
            raise HeptiError("stop strings need a tokenizer, the weights came without")
        drawn = {key: said[key] for key in ("temperature", "top_p", "top_k", "seed") if key in said}
        return Wishes(
            ending, replace(sampling, **drawn), tuple(before), said.get("logprobs"),
            said.get("prompt_logprobs"), said.get("stream", False),
            None if "schema" not in said else self._grammar(said["schema"], before),
        )  # fmt: skip

    def _check_room(self, prompt: int, tokens: int) -> None:
        """Refuse more tokens than there is room for after a prompt: one asked for them."""
        if prompt + tokens > self._context:
            raise HeptiError(
                f"max_tokens is {tokens}, the context of {self._context} has room for {self._context - prompt} after "
                f"the prompt's {prompt}: ask for fewer, or give a longer --context"
            )

    def _grammar(self, schema: Mapping[str, Any], said: Sequence[int]) -> JsonGrammar:
        """Return which tokens an answer may have that is JSON of a schema, and begins with some."""
        check_model(self._model, self._tokenizer)
        if self._grammars is None:
            assert self._tokenizer is not None
            self._grammars = JsonGrammars(self._tokenizer.to_text(), self._model.vocab, self._model.eos)
        return self._grammars.of(schema, said)

    def _text(self, name: str | int, text: Any) -> Prompt:
        if not isinstance(text, str):
            raise HeptiError("prompt is no string")
        if not text:
            raise HeptiError("the prompt is empty")
        return self._encoded(name, text, self._model.bos)

    def _messages(self, name: str | int, messages: Any) -> Prompt:
        if not isinstance(messages, list) or not messages:
            raise HeptiError('messages must be a list like [{"role": "user", "content": "…"}]')
        for number, message in enumerate(messages, start=1):
            if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
                raise HeptiError(f'message {number} is not like {{"role": "user", "content": "…"}}')
            if message["role"] not in ROLES:
                found = f"the role of message {number} is {message['role']!r}"
                raise HeptiError(f"{found}, must be one of {', '.join(ROLES)}")
        return self.conversation(messages, name)

    def _tokens(self, name: str | int, ids: Any) -> Prompt:
        check_ids(ids, self._model.name, self._model.vocab)
        return self._fitting(Prompt(name, tuple(ids)))

    def _encoded(self, name: str | int, text: str, bos: int | None) -> Prompt:
        if self._tokenizer is None:
            raise HeptiError(
                f"the weights of {self._model.name} came without a tokenizer: "
                'give lines like {"id": 1, "tokens": [101, 102]}'
            )
        check_unicode(text, "the prompt")
        ids = self._tokenizer.encode(text, bos)
        if not ids:
            raise HeptiError("the prompt is empty: its text has no tokens")
        # A tokenizer may know more tokens than the model was trained with.
        check_ids(list(ids), self._model.name, self._model.vocab)
        return self._fitting(Prompt(name, ids, text))

    def _fitting(self, prompt: Prompt) -> Prompt:
        if len(prompt.tokens) > self._context:
            raise HeptiError(
                f"the prompt has {len(prompt.tokens)} tokens, the context {self._context}: "
                "shorten it or give a longer --context"
            )
        return prompt
