"""/v1/chat/completions and /v1/completions: what is asked of a language model, and its answer, whole or as it comes."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from launch.serve.metrics import Served
from launch.serve.texts import MOST_TOP_K, LanguageTexts, code_of
from launch.serve.transport import ApiError, Desk, Fields, check_text, shown, wrong
from solver.base.errors import HeptiError

Found = TypeVar("Found")

MOST_STOPS = 4  # as OpenAI
MOST_LOGPROBS = 20
COMPLETION_TOKENS = 16  # OpenAI's default
MESSAGES = '[{"role": "user", "content": "…"}]'
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
INT64 = 1 << 63  # seeds are from minus this on, below it
# What would change an answer, and is not there; a value that changes nothing is taken.
UNSUPPORTED: Sequence[tuple[str, str, tuple[Any, ...]]] = (
    ("n", "an answer is one choice", (1,)),
    ("best_of", "an answer is one choice", (1,)),
    ("tools", "functions are not called", ([],)),
    ("functions", "functions are not called", ([],)),
    ("tool_choice", "functions are not called", ("none", "auto")),
    ("function_call", "functions are not called", ("none", "auto")),
    ("frequency_penalty", "tokens are drawn without penalties", (0, 0.0)),
    ("presence_penalty", "tokens are drawn without penalties", (0, 0.0)),
    ("repetition_penalty", "tokens are drawn without penalties", (1, 1.0)),
    ("min_p", "top_p and top_k limit what is drawn", (0, 0.0)),
    ("logit_bias", "tokens are drawn without biases", ({},)),
    ("stop_token_ids", "texts and the model's own tokens end an answer", ([],)),
    ("min_tokens", "an answer ends where the model ends it", (0,)),
    ("prompt_logprobs", "probabilities are those of the answer", ()),
    ("use_beam_search", "tokens are drawn one by one", (False,)),
    ("echo", "the prompt is not repeated", (False,)),
    ("suffix", "nothing is filled in before a text", ("",)),
    ("modalities", "answers are text", (["text"],)),
    ("audio", "answers are text", ()),
    ("guided_json", "answers are free text", ()),
    ("guided_regex", "answers are free text", ()),
    ("guided_choice", "answers are free text", ()),
    ("guided_grammar", "answers are free text", ()),
    ("grammar", "answers are free text", ("",)),
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a language model.

    Parameters
    ----------
    model
        Whom.
    line
        What goes to the ranks.
    streams
        Whether the answer comes in pieces.
    tells_usage
        Whether a stream ends with how many tokens there were.
    """

    model: Served
    line: dict[str, Any]
    streams: bool
    tells_usage: bool


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

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def question(self, body: Fields, model: Served, texts: LanguageTexts) -> Question:
        """Read a body.

        Raises
        ------
        ApiError
            If something in it is wrong, not supported, or longer than the context.
        """
        for name, why, allowed in UNSUPPORTED:
            body.refuse(name, why, *allowed)
        line = {"id": f"{self.prefix}-{uuid.uuid4().hex}", **_drawing(body, texts), "stream": True}
        if (schema := _schema(body.object("response_format"))) is not None:
            await _in_thread("response_format", texts.check_schema, schema)
            line["schema"] = schema
        if (logprobs := self._logprobs(body)) is not None:
            line["logprobs"] = logprobs
        most_field, most = self._most_tokens(body)
        streams, tells_usage = body.flag("stream"), body.object("stream_options").flag("include_usage")
        tokens = await self._tokens(body, texts)
        room = _room(len(tokens), most, texts.context, (self.prompt_field, most_field))
        line |= {"tokens": tokens, "max_tokens": room}
        return Question(model, line, streams, tells_usage)

    async def answer(self, question: Question, texts: LanguageTexts) -> dict[str, Any]:
        """Return the answer, when all of it is there."""
        async with self._desk.ask(question.model, question.line) as lines:
            logprobs = _Logprobs(texts, question.line)
            entries = []
            async for line in lines:
                if "token" in line:
                    entries += logprobs.take(line)
                else:
                    last = line
            choice = self._choice(_text(last), self._told_logprobs(entries) if logprobs.asked else None)
            if not texts.has_tokenizer:
                choice["token_ids"] = list(last.get("new_tokens", ()))
            choice["finish_reason"] = _reason(last)
            return self._object(question, texts, self.kind, [choice]) | {"usage": _usage(question.line, last)}

    async def pieces(self, question: Question, texts: LanguageTexts) -> AsyncGenerator[str, None]:
        """Yield the answer as it comes, as the data of events."""

        def piece(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
            found = self._object(question, texts, self.piece_kind, choices)
            return json.dumps(found | {"usage": usage} if question.tells_usage else found)

        async with self._desk.ask(question.model, question.line) as lines:
            logprobs = _Logprobs(texts, question.line)
            told = 0  # characters
            async for line in lines:
                if not logprobs.tokens and not told:
                    for choice in self._opening():
                        yield piece([choice])
                if "token" in line:
                    entries, text = logprobs.take(line), str(line.get("text", ""))
                    told_ids = {} if texts.has_tokenizer else {"token_ids": [line["token"]]}
                    if text or logprobs.asked or told_ids:
                        told_logprobs = self._told_logprobs(entries) if logprobs.asked else None
                        yield piece([self._piece(text, told_logprobs) | told_ids])
                else:
                    # What was held back until the end.
                    text = _text(line)[told:]
                    yield piece([self._piece(text, None) | {"finish_reason": _reason(line)}])
                    if question.tells_usage:
                        yield piece([], _usage(question.line, line))
                told += len(text)
        yield "[DONE]"

    def _object(
        self, question: Question, texts: LanguageTexts, kind: str, choices: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": question.line["id"], "object": kind, "created": int(time.time()), "model": question.model.name,
            "system_fingerprint": texts.fingerprint, "choices": choices,
        }  # fmt: skip

    prompt_field: str

    @abstractmethod
    async def _tokens(self, body: Fields, texts: LanguageTexts) -> list[int]:
        """Return what the answer continues."""

    @abstractmethod
    def _most_tokens(self, body: Fields) -> tuple[str, int | None]:
        """Return the most tokens that the answer may have, behind their field; None: as many as there is room for."""

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

    async def _tokens(self, body: Fields, texts: LanguageTexts) -> list[int]:
        messages = _messages(body.value("messages"))
        settings = body.value("chat_template_kwargs") or {}
        if not isinstance(settings, dict):
            raise wrong("chat_template_kwargs", "an object", settings)
        if "messages" in settings:
            raise ApiError(400, "chat_template_kwargs has messages: give them beside it", "messages", "invalid_value")
        return await _in_thread("messages", texts.conversation, messages, settings)

    def _most_tokens(self, body: Fields) -> tuple[str, int | None]:
        older = body.whole("max_tokens", 1)
        newer = body.whole("max_completion_tokens", 1)
        if older and newer and older != newer:
            complaint = f"max_tokens is {older}, max_completion_tokens {newer}: these are two names of one number"
            raise ApiError(400, complaint, "max_completion_tokens", "invalid_value")
        return ("max_tokens", older) if newer is None else ("max_completion_tokens", newer)

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

    async def _tokens(self, body: Fields, texts: LanguageTexts) -> list[int]:
        prompt = body.value("prompt")
        if isinstance(prompt, list) and prompt and all(isinstance(one, str | list) for one in prompt):
            if len(prompt) > 1:
                complaint = f"prompt is a list of {len(prompt)} prompts: ask one in a request"
                raise ApiError(400, complaint, "prompt", "unsupported_parameter")
            prompt = prompt[0]
        if isinstance(prompt, str):
            return await _in_thread("prompt", texts.prompt, check_text(prompt, "prompt"))
        if not isinstance(prompt, list):
            raise wrong("prompt", "a string or a list of token ids", prompt)
        if not prompt:
            raise ApiError(400, "prompt is empty: it has no tokens", "prompt", "empty_array")
        for number, token in enumerate(prompt):
            if type(token) is not int:
                raise wrong(f"prompt[{number}]", "a token id", token)
        return await _in_thread("prompt", texts.ids, prompt)

    def _most_tokens(self, body: Fields) -> tuple[str, int | None]:
        return "max_tokens", body.whole("max_tokens", 1) or COMPLETION_TOKENS

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
            "top_logprobs": [dict(entry.top) for entry in entries],
            "text_offset": [entry.offset for entry in entries],
        }


@dataclass(frozen=True, slots=True)
class _TokenLogprob:
    """A token's text and where it begins in the answer, its logarithm of probability, and those of alternatives."""

    text: str
    offset: int
    logprob: float
    top: list[tuple[str, float]]


class _Logprobs:
    """Makes entries of the ranks' lines, if they were asked for."""

    def __init__(self, texts: LanguageTexts, line: Mapping[str, Any]) -> None:
        self.asked = "logprobs" in line
        self.tokens: list[int] = []
        self._texts = texts
        self._offset = 0

    def take(self, line: Mapping[str, Any]) -> list[_TokenLogprob]:
        token = int(line["token"])
        found = []
        if self.asked and "logprob" in line:
            text = self._text(token)
            top = [(self._text(int(other)), float(logprob)) for other, logprob in line.get("top", ())]
            found.append(_TokenLogprob(text, self._offset, float(line["logprob"]), top))
            self._offset += len(text)
        self.tokens.append(token)
        return found

    def _text(self, token: int) -> str:
        """Return a token's own text: that of a line may be held back, or end a character of tokens before."""
        if not self._texts.has_tokenizer:
            return f"token_id:{token}"
        stream = self._texts.stream(self.tokens)
        return stream.step(token) or stream.rest() or self._texts.name(token)


def _drawing(body: Fields, texts: LanguageTexts) -> dict[str, Any]:
    """Return how tokens are drawn and what ends an answer; every default is said, so that a replay is the same."""
    temperature = body.number("temperature", 0.0, 2.0, texts.temperature)
    top_p = body.number("top_p", 0.0, 1.0, texts.top_p)
    if top_p == 0:
        raise ApiError(400, "top_p is 0, must be above 0 and at most 1", "top_p", "invalid_value")
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


def _messages(messages: Any) -> list[dict[str, str]]:
    """Return a conversation as chat templates read it."""
    if messages is None:
        complaint = f"messages is missing, it must be a list like {MESSAGES}"
        raise ApiError(400, complaint, "messages", "missing_required_parameter")
    if not isinstance(messages, list):
        raise wrong("messages", f"a list like {MESSAGES}", messages)
    if not messages:
        raise ApiError(400, f"messages is empty: give one at least, like {MESSAGES}", "messages", "empty_array")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong(where, "an object", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES or message.get("tool_calls") or message.get("function_call"):
        complaint = f"{where}: only plain messages of {', '.join(ROLES)} are supported"
        raise ApiError(400, complaint, f"{where}.role", "invalid_value")
    return {"role": ROLES[role], "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    """Return the text of a message: a string, or parts that are all text."""
    if not isinstance(content, list):
        return check_text(content, where)
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ApiError(400, f"{where}: only parts of type text are supported", where, "unsupported_content")
    return "".join(check_text(part.get("text"), f"{where}.text") for part in content)


def _schema(wished: Fields) -> dict[str, Any] | None:
    """Return the schema of an answer that is to be JSON; None where it is free text."""
    match wished.value("type"):
        case None | "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            schema = wished.object("json_schema").value("schema")
            if not isinstance(schema, dict):
                raise wrong("response_format.json_schema.schema", "an object", schema)
            return schema
    complaint = f"response_format.type is {shown(wished.value('type'))}, must be text, json_object or json_schema"
    raise ApiError(400, complaint, "response_format.type", "invalid_value")


async def _in_thread(param: str, call: Callable[..., Found], *arguments: Any) -> Found:
    """Return what a function finds, while others are answered; its refusals become errors of a field."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except HeptiError as error:
        raise ApiError(400, str(error), param, code_of(error)) from None


def _room(prompt: int, most: int | None, context: int, fields: tuple[str, str]) -> int:
    """Return how many tokens an answer may have; `fields` are those of the prompt and of `most`, for a refusal."""
    room = context - prompt
    if room >= (most or 1):
        return most or room
    complaint = (
        f"the context has {context} tokens, {prompt + (most or 1)} are needed: {prompt} of the prompt and "
        f"{most or 'at least one'} of the answer"
    )
    mend, field = (f"ask for at most {room}", fields[1]) if room > 0 else ("shorten the prompt", fields[0])
    raise ApiError(400, f"{complaint}: {mend}", field, "context_length_exceeded")


def _text(last: Mapping[str, Any]) -> str:
    return str(last.get("text", ""))


def _reason(last: Mapping[str, Any]) -> str:
    """Return why an answer ended: "length", or "stop"."""
    return "length" if last.get("finish_reason") == "length" else "stop"


def _usage(line: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    prompt, made = len(line["tokens"]), len(last.get("new_tokens", ()))
    return {
        "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": int(last.get("known", 0))},
    }  # fmt: skip


def _chat_logprob(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace"))}
