"""What a weights file says of requests to it: its tokens, its chat template, its limits and its labels.

The server counts a request's tokens before it queues, so that what is too long is refused at once with both numbers,
and the ranks get token ids: a replay after a loss is of the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.api.messages import Conversation
from solver.base.errors import HeptiError, explained
from solver.model.decoder import Decoder
from solver.model.spec import TextInput
from solver.schedule.decoders.asked import CONTEXT
from weights.decoders.file import DecoderFile
from weights.file.networks import NetworkFile
from weights.file.store import LANGUAGE_MODEL, NETWORK, TensorFile, WeightsFile
from weights.inputs.json_grammar import check_model, check_schema
from weights.inputs.templates import ChatTemplate
from weights.inputs.tokenize import PromptTokenizer, TextStream, Tokenizer

NOTHING = "no endpoint gives what it computes"
IDS = "token ids"
ASK_IDS = "with a prompt of token ids like [1, 15043]"
MOST_EXPONENT = 700.0  # that of which e is a number
ENDLESS = 1 << 30  # tokens: texts are counted whole
MOST_TOP_K = 256  # candidates that ranks gather of the whole vocabulary
# Characters of a token, on average, are fewer in any language and in code. What is longer is not taken apart:
# that takes 180 bytes of memory and a microsecond a character.
MOST_A_TOKEN = 64


class TooLongTextError(HeptiError):
    """A text has more tokens than the model reads."""


class SchemaError(HeptiError):
    """Answers cannot be held to a JSON schema."""


class LanguageTexts:
    """Of a language model.

    Parameters
    ----------
    file
        Its weights file.
    name
        What clients call it.
    context
        Tokens of a prompt and its answer; None: what a run has room for by default.

    Attributes
    ----------
    temperature, top_p, top_k
        The checkpoint's own; a temperature of 0 where it does not draw.

    Raises
    ------
    HeptiError
        If its tokenizer or its template is damaged.
    """

    def __init__(self, file: DecoderFile, name: str, context: int | None = None) -> None:
        self._model: Decoder = file.model
        self._name = name
        self.fingerprint = file.fingerprint
        self.context = min(context or CONTEXT, file.model.positions)
        self._tokenizer = None if file.tokenizer is None else PromptTokenizer(file.tokenizer)
        self._template = None
        if file.chat_template is not None:
            self._template = ChatTemplate(file.chat_template, file.special)
        self.temperature = float(file.generation.get("temperature", 0.0))
        self.top_p = float(file.generation.get("top_p", 1.0))
        self.top_k = min(int(file.generation.get("top_k", 0)), MOST_TOP_K)

    @property
    def has_tokenizer(self) -> bool:
        """Whether it reads and writes text; else token ids alone."""
        return self._tokenizer is not None

    @property
    def reads(self) -> str:
        """What it can be asked with: messages; else text; else token ids."""
        if self._tokenizer is None:
            return IDS
        return "text" if self._template is None else "messages"

    def shows(self, name: str) -> bool:
        """Return whether the chat template asks for something."""
        return self._template is not None and self._template.reads(name)

    def conversation(self, asked: Conversation) -> list[int]:
        """Return the ids of a conversation, which its answer continues.

        Raises
        ------
        HeptiError
            If there is no template or tokenizer, or the template refuses the conversation.
        """
        if self._tokenizer is None:
            raise HeptiError(f"{self._name} came without a tokenizer: ask /v1/completions, {ASK_IDS}")
        if self._template is None:
            raise HeptiError(f"{self._name} came without a chat template: ask /v1/completions")
        text = self._template.render(
            asked.messages, asked.settings, tools=asked.tools, opens=asked.opens, continues=asked.continues
        )
        with explained("the text of the conversation is not Unicode", UnicodeEncodeError):
            text.encode()  # settings and tools are a stranger's
        return self._encoded(text, None)

    def prompt(self, text: str) -> list[int]:
        """Return the ids of a text, the model's first token in front.

        Raises
        ------
        HeptiError
            If there is no tokenizer, or the text has no tokens.
        """
        return self._encoded(text, self._model.bos)

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """Return ids as they are.

        Raises
        ------
        HeptiError
            If there are none, or the model does not have one of them.
        """
        if not tokens:
            raise HeptiError("the prompt is empty: it has no tokens")
        return _known(tokens, self._name, self._model.vocab)

    def check_schema(self, schema: Mapping[str, Any]) -> None:
        """Check that answers can be held to a JSON schema.

        Raises
        ------
        SchemaError
            If they cannot: it says why.
        """
        try:
            check_model(self._model, self._tokenizer)
            check_schema(schema)
        except HeptiError as error:
            raise SchemaError(str(error)) from None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of ids; special ones have none, nor has any where there is no tokenizer."""
        if self._tokenizer is None:
            return ""
        stream = self._tokenizer.stream()
        return "".join(map(stream.step, tokens)) + stream.rest()

    def stream(self, before: Sequence[int]) -> TextStream:
        """Return what makes text of ids after others."""
        assert self._tokenizer is not None
        return self._tokenizer.stream(before)

    def name(self, token: int) -> str:
        """Return what the tokenizer calls a token: of a special one, which has no text."""
        assert self._tokenizer is not None
        return self._tokenizer.name(token)

    def _encoded(self, text: str, bos: int | None) -> list[int]:
        if self._tokenizer is None:
            raise HeptiError(f"{self._name} came without a tokenizer: ask {ASK_IDS}")
        _check_length(text, self.context)
        # A tokenizer may know more tokens than the model was trained with.
        return self.ids(self._tokenizer.encode(text, bos))


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts as a model reads them, one after the other; `cut`: they were longer than it reads."""

    ids: list[int]
    types: list[int]
    cut: bool

    @property
    def line(self) -> dict[str, Any]:
        """What goes to the ranks."""
        return {"tokens": self.ids, "types": self.types}


class EncoderTexts:
    """Of an encoder that reads text.

    Parameters
    ----------
    file
        Its weights file.
    name
        What clients call it.

    Attributes
    ----------
    labels
        Of a classifier; none where it embeds.
    width, normalize
        Numbers of an embedding, and whether it has length one.

    Raises
    ------
    HeptiError
        If its tokenizer is damaged.
    """

    def __init__(self, file: WeightsFile, name: str) -> None:
        spec, source = file.spec, file.spec.input
        assert isinstance(source, TextInput)
        self._name, self._input = name, source
        self.fingerprint = file.fingerprint
        self.labels = spec.labels
        self.width = spec.embedding_width
        self.normalize = spec.normalize
        self._scores = spec.pair_scores
        self._tokenizer = self._cutting = None
        if file.tokenizer is not None:
            self._tokenizer, self._cutting = (
                Tokenizer(file.tokenizer, most, source.prompt) for most in (ENDLESS, self.context)
            )

    @property
    def reads(self) -> str:
        """What it can be asked with: text, else token ids."""
        return IDS if self._tokenizer is None else "text"

    @property
    def context(self) -> int:
        """The longest text, in tokens."""
        return self._input.max_rows

    def prompt(self, text: str) -> list[int]:
        """Return the ids of a text, special tokens included; nothing is cut.

        Raises
        ------
        HeptiError
            If there is no tokenizer, or the model does not have a token.
        """
        if self._tokenizer is None:
            raise HeptiError(f"{self._name} came without a tokenizer: give a list of token ids, like [101, 7592, 102]")
        _check_length(text, self.context)
        return _known(self._tokenizer(text).ids, self._name, self._input.vocab)

    def pair(self, first: str, second: str) -> TextPair:
        """Return two texts as a cross-encoder reads them: of the longer one is cut what it does not read.

        Raises
        ------
        HeptiError
            As `prompt`; or if texts are not read in pairs.
        """
        if self._cutting is None:
            raise HeptiError(f"{self._name} came without a tokenizer: pairs are texts")
        if len(self.labels) == 1 and not self._scores:
            raise HeptiError(f"the weights of {self._name} are older than pairs: convert them again")
        for text in (first, second):
            _check_length(text, self.context)
        tokens = self._cutting(first, second)
        ids = _known(tokens.ids, self._name, self._input.vocab)
        return TextPair(ids, list(self._input.types_of(tokens.types)), tokens.truncated)

    def score(self, logit: float) -> float:
        """Return the score of a pair, of what the model says: as sentence-transformers' CrossEncoder makes it."""
        match self._scores:
            case "identity":
                return logit
            case "sigmoid":
                return 1 / (1 + math.exp(-logit)) if logit > -MOST_EXPONENT else 0.0
        return 1.0  # softmax, of one

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """Return ids as they are.

        Raises
        ------
        HeptiError
            If the model does not have one of them.
        """
        return _known(tokens, self._name, self._input.vocab)


@dataclass(frozen=True, slots=True)
class ImageTexts:
    """Of a model that tells what is on images, and its labels. The ranks read the images."""

    fingerprint: str
    labels: tuple[str, ...]
    reads: str = "images"


ModelTexts = LanguageTexts | EncoderTexts | ImageTexts


def read_texts(path: Path, context: int | None = None) -> ModelTexts:
    """Read what a weights file says of requests to it.

    Parameters
    ----------
    context
        Tokens of a prompt and its answer of a language model; None: what a run has room for by default.

    Raises
    ------
    HeptiError
        If it is no weights file, or damaged.
    """
    with TensorFile(path) as file:
        kind = file.kind
    if kind == LANGUAGE_MODEL:
        with DecoderFile(path) as decoder:
            return LanguageTexts(decoder, path.stem, context)
    if kind == NETWORK:
        with NetworkFile(path) as network:
            if network.net.head == "none":
                raise HeptiError(f"{network.net.name} neither names classes nor finds boxes: {NOTHING}")
            return ImageTexts(network.fingerprint, network.net.labels)
    with WeightsFile(path) as weights:
        if isinstance(weights.spec.input, TextInput):
            return EncoderTexts(weights, path.stem)
        if not weights.spec.labels:
            raise HeptiError(f"{weights.spec.name} reads images and names no classes: {NOTHING}")
        return ImageTexts(weights.fingerprint, weights.spec.labels)


def code_of(error: HeptiError) -> str:
    """Return OpenAI's word for what is wrong with a text, or a schema."""
    codes = {TooLongTextError: "context_length_exceeded", SchemaError: "invalid_value"}
    return codes.get(type(error), "invalid_prompt")


def _check_length(text: str, context: int) -> None:
    if len(text) > context * MOST_A_TOKEN:
        raise TooLongTextError(
            f"the text has {len(text)} characters, {context} tokens are at most {context * MOST_A_TOKEN}: shorten it"
        )


def _known(tokens: Sequence[int], model: str, vocab: int) -> list[int]:
    for token in tokens:
        if not 0 <= token < vocab:
            name = token if abs(token) < ENDLESS else "of many digits"
            raise HeptiError(f"token {name} is out of range: {model} has {vocab} tokens, from 0 on")
    return list(tokens)
