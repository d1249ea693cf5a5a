"""/v1/chat/completions and /v1/completions: what is asked of a language model, and its answer, whole or as it comes."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from launch.api.body import Fields, check_text, wrong
from launch.api.errors import ApiError
from launch.api.messages import conversation_of, schema_of
from launch.api.rules import FieldTable
from launch.api.tables import CHAT, COMPLETION
from launch.serve.metrics import Served
from launch.serve.texts import MOST_TOP_K, LanguageTexts, code_of
from launch.serve.transport import AnswerLines, Desk
from solver.base.errors import HeptiError

Found = TypeVar("Found")

MOST_STOPS = 4  # as OpenAI
MOST_LOGPROBS = 20
COMPLETION_TOKENS = 16  # OpenAI's default
INT64 = 1 << 63  # seeds are from minus this on, below it


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """What an answer continues: its tokens, and its text where it is repeated before the answer."""

    tokens: list[int]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a language model.

    Parameters
    ----------
    id
        Of the answer.
    model
        Whom.
    lines
        What goes to the ranks, one for each prompt.
    echoes
        The text that each answer begins with.
    makes
        Whether there is an answer; else the prompts are looked at, and the one token that ranks make is not told.
    streams
        Whether the answer comes in pieces.
    tells_usage
        Whether a stream ends with how many tokens there were.
    """

    id: str
    model: Served
    lines: list[dict[str, Any]]
    echoes: list[str]
    makes: bool
    streams: bool
    tells_usage: bool

    def usage(self, lasts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return how many tokens there were, of the ranks' last lines."""
        prompt = sum(len(line["tokens"]) for line in self.lines)
        made = sum(len(last.get("new_tokens", ())) for last in lasts) * self.makes
        return {
            "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": sum(int(last.get("known", 0)) for last in lasts)},
        }  # fmt: skip


class Endpoint(ABC):
    """One of the two endpoints of language models.

    Parameters
    ----------
    desk
        Where requests are handed in.
    """

    prefix: str  # of the ids of its answers
    kind: str  # of an answer
    piece_kind: str  # of a piece of a stream
    prompt_field: str
    fields: FieldTable

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def question(self, body: Fields, model: Served, texts: LanguageTexts) -> Question:
        """Read a body.

        Raises
        ------
        ApiError
            If something in it is wrong, not supported, or longer than the context.
        """
        body.check(self.fields)
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        common: dict[str, Any] = {**_drawing(body, texts), "stream": True}
        if (schema := schema_of(body)) is not None:
            field = "json_schema" if "json_schema" in body else "response_format"
            await _in_thread(field, texts.check_schema, schema)
            common["schema"] = schema
        if (logprobs := self._logprobs(body)) is not None:
            common["logprobs"] = logprobs
        streams, tells_usage = body.flag("stream"), body.object("stream_options").flag("include_usage")
        if "stream_options" in body and not streams:
            raise ApiError(400, "stream_options are for a stream: ask for one, too", "stream_options", "invalid_value")
        if echoes := self._echoes(body):
            common |= _told_prompt(logprobs, streams=streams, schema=schema)
        most_field, most = self._most_tokens(body)
        prompts = await self._prompts(body, texts)
        rooms = [_room(len(prompt.tokens), most, texts.context, (self.prompt_field, most_field)) for prompt in prompts]
        lines = [
            {"id": name if len(prompts) == 1 else f"{name}-{index}", **common, "tokens": prompt.tokens, **room}
            for index, (prompt, room) in enumerate(zip(prompts, rooms, strict=True))
        ]
        texts_before = [prompt.text if echoes else "" for prompt in prompts]
        return Question(name, model, lines, texts_before, most != 0, streams, tells_usage)

    async def answer(self, question: Question, texts: LanguageTexts) -> dict[str, Any]:
        """Return the answers to all prompts, when all of them are there."""

        async def one(index: int, lines: AnswerLines) -> tuple[dict[str, Any], Mapping[str, Any]]:
            logprobs = _Logprobs(texts, question.lines[index])
            entries: list[_TokenLogprob] = []
            async for line in lines:
                if "token" in line:
                    entries += logprobs.take(line)
                else:
                    last = line
            if not question.makes:
                entries, last = [], {**last, "text": "", "new_tokens": [], "finish_reason": "length"}
            entries = logprobs.of_prompt(last) + entries
            text = question.echoes[index] + _text(last)
            choice = self._choice(text, self._told_logprobs(entries) if logprobs.asked else None)
            if not texts.has_tokenizer:
                choice["token_ids"] = list(last.get("new_tokens", ()))
            return choice | {"index": index, "finish_reason": _reason(last)}, last

        found = await self._desk.ask_all(question.model, question.lines, one)
        choices, lasts = [choice for choice, _ in found], [last for _, last in found]
        return self._object(question, texts, self.kind, choices) | {"usage": question.usage(lasts)}

    async def pieces(self, question: Question, texts: LanguageTexts) -> AsyncGenerator[str, None]:
        """Yield the answers as they come, one prompt's after the other's, as the data of events."""

        def piece(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
            found = self._object(question, texts, self.piece_kind, choices)
            return json.dumps(found | {"usage": usage} if question.tells_usage else found)

        lasts: list[Mapping[str, Any]] = []
        for index in range(len(question.lines)):
            async with aclosing(self._choices(question, index, texts, lasts)) as choices:
                async for choice in choices:
                    yield piece([choice | {"index": index}])
        if question.tells_usage:
            yield piece([], question.usage(lasts))
        yield "[DONE]"

    async def _choices(
        self, question: Question, index: int, texts: LanguageTexts, lasts: list[Mapping[str, Any]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the pieces of a prompt's answer; its last line goes into `lasts`."""
        async with self._desk.ask(question.model, question.lines[index]) as lines:
            logprobs = _Logprobs(texts, question.lines[index])
            told, opened = 0, False  # characters
            async for line in lines:
                if not opened:
                    opened = True
                    for choice in self._opening():
                        yield choice
                    if question.echoes[index]:
                        yield self._piece(question.echoes[index], None)
                text = ""
                if "token" in line and question.makes:
                    entries, text = logprobs.take(line), str(line.get("text", ""))
                    told_ids = {} if texts.has_tokenizer else {"token_ids": [line["token"]]}
                    if text or logprobs.asked or told_ids:
                        told_logprobs = self._told_logprobs(entries) if logprobs.asked else None
                        yield self._piece(text, told_logprobs) | told_ids
                elif "token" not in line:
                    # What was held back until the end.
                    text = _text(line)[told:] if question.makes else ""
                    yield self._piece(text, None) | {"finish_reason": _reason(line) if question.makes else "length"}
                    lasts.append(line)
                told += len(text)

    def _object(
        self, question: Question, texts: LanguageTexts, kind: str, choices: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": question.id, "object": kind, "created": int(time.time()), "model": question.model.name,
            "system_fingerprint": texts.fingerprint, "choices": choices,
        }  # fmt: skip

    def _echoes(self, body: Fields) -> bool:
        """Return whether answers begin with their prompts."""
        return False

    @abstractmethod
    async def _prompts(self, body: Fields, texts: LanguageTexts) -> list[AskedPrompt]:
        """Return what the answers continue."""

    @abstractmethod
    def _most_tokens(self, body: Fields) -> tuple[str, int | None]:
        """Return the most tokens that the answer may have, after their field; None: as many as there is room for."""

    @abstractmethod
    def _logprobs(self, body: Fields) -> int | None:
        """Return how many alternatives are told of each token; None: not even its own probability."""

    @abstractmethod
    def _opening(self) -> list[dict[str, Any]]:
        """Return what a stream begins with."""

    @abstractmethod
    def _choice(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        """Return an answer's choice."""

    @abstractmethod
    def _piece(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        """Return a piece's choice."""

    @abstractmethod
    def _told_logprobs(self, entries: list[_TokenLogprob]) -> dict[str, Any]:
        """Return logarithms of probabilities as this endpoint tells them."""


class Chat(Endpoint):
    """/v1/chat/completions."""

    prefix, kind, piece_kind, prompt_field = "chatcmpl", "chat.completion", "chat.completion.chunk", "messages"
    fields = CHAT

    async def _prompts(self, body: Fields, texts: LanguageTexts) -> list[AskedPrompt]:
        asked = conversation_of(body, texts.shows)
        return [AskedPrompt(await _in_thread("messages", texts.conversation, asked))]

    def _most_tokens(self, body: Fields) -> tuple[str, int | None]:
        names = ("max_tokens", "max_completion_tokens", "n_predict")
        return _most(body, {name: body.whole(name, -1 if name == "n_predict" else 1) for name in names})

    def _logprobs(self, body: Fields) -> int | None:
        top = body.whole("top_logprobs", 0, MOST_LOGPROBS)
        if body.flag("logprobs"):
            return top or 0
        if top:
            raise ApiError(400, "top_logprobs needs logprobs to be true", "top_logprobs", "invalid_value")
        return None

    def _opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]

    def _choice(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "index": 0, "message": {"role": "assistant", "content": text, "refusal": None}, "logprobs": logprobs
        }  # fmt: skip

    def _piece(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        delta = {"content": text} if text or logprobs else {}
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _told_logprobs(self, entries: list[_TokenLogprob]) -> dict[str, Any]:
        return {
            "content": [
                {**_chat_logprob(entry.text, entry.logprob), "top_logprobs": [_chat_logprob(*one) for one in entry.top]}
                for entry in entries
            ],
            "refusal": None,
        }


class Completion(Endpoint):
    """/v1/completions."""

    prefix, kind, piece_kind, prompt_field = "cmpl", "text_completion", "text_completion", "prompt"

    fields = COMPLETION

    async def _prompts(self, body: Fields, texts: LanguageTexts) -> list[AskedPrompt]:
        prompt, echoes = body.value("prompt"), body.flag("echo")
        several = isinstance(prompt, list) and prompt and all(isinstance(one, str | list) for one in prompt)
        given: list[Any] = prompt if several else [prompt]
        if len(given) > (most := self._desk.limits.inputs):
            raise ApiError(
                400, f"prompt has {len(given)} entries, at most {most} are taken", "prompt", "array_too_long"
            )
        return [
            await _prompt(one, f"prompt[{number}]" if len(given) > 1 else "prompt", texts, echoes=echoes)
            for number, one in enumerate(given)
        ]

    def _echoes(self, body: Fields) -> bool:
        return body.flag("echo")

    def _most_tokens(self, body: Fields) -> tuple[str, int | None]:
        given = {name: body.whole(name, -1 if name == "n_predict" else 0) for name in ("max_tokens", "n_predict")}
        return _most(body, given, otherwise=COMPLETION_TOKENS)

    def _logprobs(self, body: Fields) -> int | None:
        return body.whole("logprobs", 0, MOST_LOGPROBS)

    def _opening(self) -> list[dict[str, Any]]:
        return []

    def _choice(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": logprobs}

    def _piece(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return self._choice(text, logprobs) | {"finish_reason": None}

    def _told_logprobs(self, entries: list[_TokenLogprob]) -> dict[str, Any]:
        return {
            "tokens": [entry.text for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [None if entry.logprob is None else dict(entry.top) for entry in entries],
            "text_offset": [entry.offset for entry in entries],
        }


@dataclass(frozen=True, slots=True)
class _TokenLogprob:
    """A token's text and where it begins in the answer, its logarithm of probability, and those of alternatives."""

    text: str
    offset: int
    logprob: float | None  # None: of the first token of all
    top: list[tuple[str, float]]


class _Logprobs:
    """Makes entries of the ranks' lines, if they were asked for; of the prompt where that is told, too."""

    def __init__(self, texts: LanguageTexts, line: Mapping[str, Any]) -> None:
        self.asked = "logprobs" in line
        self.tokens: list[int] = []
        self._texts = texts
        self._prompt: list[int] = line["tokens"] if "prompt_logprobs" in line else []
        self._before = [self._text(token, self._prompt[:place]) for place, token in enumerate(self._prompt)]
        self._offset = sum(map(len, self._before))

    def take(self, line: Mapping[str, Any]) -> list[_TokenLogprob]:
        token = int(line["token"])
        found = []
        if self.asked and "logprob" in line:
            found.append(self._entry(self._text(token, self.tokens), self._offset, line["logprob"], line, self.tokens))
            self._offset += len(found[0].text)
        self.tokens.append(token)
        return found

    def of_prompt(self, last: Mapping[str, Any]) -> list[_TokenLogprob]:
        """Return the entries of the prompt's tokens; before the first nothing stands that it could follow."""
        if not self._prompt:
            return []
        told = [{"logprob": None, "top": []}, *last["prompt_logprobs"]]
        offsets = accumulate(map(len, self._before[:-1]), initial=0)
        return [
            self._entry(text, offset, line["logprob"], line, self._prompt[:place])
            for place, (text, offset, line) in enumerate(zip(self._before, offsets, told, strict=True))
        ]

    def _entry(
        self, text: str, offset: int, logprob: float | None, line: Mapping[str, Any], before: Sequence[int]
    ) -> _TokenLogprob:
        top = [(self._text(int(other), before), float(chance)) for other, chance in line.get("top", ())]
        return _TokenLogprob(text, offset, None if logprob is None else float(logprob), top)

    def _text(self, token: int, before: Sequence[int]) -> str:
        """Return a token's own text: that of a line may be held back, or end a character of tokens before."""
        if not self._texts.has_tokenizer:
            return f"token_id:{token}"
        stream = self._texts.stream(before)
        return stream.step(token) or stream.rest() or self._texts.name(token)


async def _prompt(prompt: Any, where: str, texts: LanguageTexts, *, echoes: bool) -> AskedPrompt:
    """Return a text or a list of token ids as a prompt; its text, if it is told again."""
    if isinstance(prompt, str):
        return AskedPrompt(await _in_thread("prompt", texts.prompt, check_text(prompt, where)), prompt)
    if not isinstance(prompt, list):
        raise wrong(where, "a string or a list of token ids", prompt)
    if not prompt:
        raise ApiError(400, f"{where} is empty: it has no tokens", where, "empty_array")
    for number, token in enumerate(prompt):
        if type(token) is not int:
            raise wrong(f"{where}[{number}]", "a token id", token)
    ids = await _in_thread("prompt", texts.ids, prompt)
    return AskedPrompt(ids, await _in_thread("prompt", texts.text, ids) if echoes else "")


def _most(body: Fields, given: Mapping[str, int | None], otherwise: int | None = None) -> tuple[str, int | None]:
    """Return which field says the most tokens of an answer, and how many; None and -1: as many as there is room for."""
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        return "max_tokens", otherwise
    first, *others = said
    for name in others:
        if said[name] != said[first]:
            complaint = f"{first} is {said[first]}, {name} {said[name]}: these are two names of one number"
            raise ApiError(400, complaint, name, "invalid_value")
    name = others[-1] if others else first
    return name, None if said[name] == -1 else said[name]


def _told_prompt(logprobs: int | None, *, streams: bool, schema: Mapping[str, Any] | None) -> dict[str, int]:
    """Return what the ranks are asked of the prompt itself, where it is told again."""
    if logprobs is None:
        return {}
    if streams:
        complaint = "echo with logprobs is not streamed: leave out one of echo, logprobs and stream"
        raise ApiError(400, complaint, "stream", "unsupported_parameter")
    if schema is not None:
        complaint = "echo with logprobs goes with no schema: leave out one of echo, logprobs and response_format"
        raise ApiError(400, complaint, "response_format", "unsupported_parameter")
    return {"prompt_logprobs": logprobs}


def _drawing(body: Fields, texts: LanguageTexts) -> dict[str, Any]:
    """Return how tokens are drawn and what ends an answer; every default is said, so that a replay is the same."""
    temperature = body.number("temperature", 0.0, 2.0, texts.temperature)
    top_p = body.number("top_p", 0.0, 1.0, texts.top_p)
    top_k = body.whole("top_k", -1, MOST_TOP_K)
    stop = body.strings("stop", MOST_STOPS)
    if stop and not texts.has_tokenizer:
        raise ApiError(400, "stop needs a tokenizer, the weights came without", "stop", "unsupported_parameter")
    found = {
        "temperature": temperature, "top_p": top_p, "top_k": texts.top_k if top_k is None else max(top_k, 0),
        "stop": stop, "ignore_eos": body.flag("ignore_eos"),
    }  # fmt: skip
    seed = body.whole("seed", -INT64, INT64 - 1)
    if temperature:
        found["seed"] = secrets.randbelow(INT64) if seed is None else seed % (2 * INT64)
    return found


async def _in_thread(param: str, call: Callable[..., Found], *arguments: Any) -> Found:
    """Return what a function finds, while others are answered; its refusals become errors of a field."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except HeptiError as error:
        raise ApiError(400, str(error), param, code_of(error)) from None


def _room(prompt: int, most: int | None, context: int, fields: tuple[str, str]) -> dict[str, int]:
    """Return how many tokens an answer may have, as ranks are told it; of none they make one, as where they are not.

    `fields` are those of the prompt and of `most`, for a refusal.
    """
    room = context - prompt
    needed = 1 if most is None else most
    if room >= needed:
        return {"max_tokens": room if most is None else max(most, 1)} if room else {}
    complaint = (
        f"the context has {context} tokens, {prompt + needed} are needed: {prompt} of the prompt and "
        f"{most or 'at least one'} of the answer"
    )
    mend, field = (f"ask for at most {room}", fields[1]) if room > 0 else ("shorten the prompt", fields[0])
    raise ApiError(400, f"{complaint}: {mend}", field, "context_length_exceeded")


def _text(last: Mapping[str, Any]) -> str:
    return str(last.get("text", ""))


def _reason(last: Mapping[str, Any]) -> str:
    """Return why an answer ended: "length", or "stop"."""
    return "length" if last.get("finish_reason") == "length" else "stop"


def _chat_logprob(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace"))}
