"""/v1/embeddings, /v1/classifications, /v1/rerank and /v1/score: texts, pairs and images, each a line for ranks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request

from launch.api.body import MOST_WHOLE, Fields, check_text, wrong
from launch.api.errors import ApiError
from launch.api.tables import CLASSIFICATION, EMBEDDING, RERANK, SCORE
from launch.serve.metrics import Served
from launch.serve.texts import EncoderTexts, ImageTexts, TextPair, code_of
from launch.serve.transport import AnswerLines, Desk, files_of, parse_form
from solver.base.errors import HeptiError

FILES = ("image", "images", "file", "files")  # parts of a form that are images
FORM = "multipart/form-data"
EMBEDDING_FORMATS = ("float", "base64")
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
SAID = ("label", "score", "scores", "logits", "top5", "boxes")  # of the ranks' lines, what clients are told


@dataclass(frozen=True, slots=True)
class Scored:
    """Pairs of texts and their scores, and the id of the answer."""

    name: str
    pairs: Sequence[TextPair]
    scores: Sequence[float]


class Encoders:
    """The endpoints of models that answer a text or an image with one line.

    Parameters
    ----------
    desk
        Where requests are handed in.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def embed(self, body: Fields, model: Served, texts: EncoderTexts) -> dict[str, Any]:
        """Answer /v1/embeddings.

        Raises
        ------
        ApiError
            If something in the body is wrong, too long or not supported.
        """
        body.check(EMBEDDING)
        encoding = body.value("encoding_format") or "float"
        if encoding not in EMBEDDING_FORMATS:
            complaint = f"encoding_format must be one of {', '.join(EMBEDDING_FORMATS)}"
            raise ApiError(400, complaint, "encoding_format", "invalid_value")
        width = body.whole("dimensions", 1)
        if width is not None and width > texts.width:
            complaint = f"dimensions is {width}, embeddings of {model.name} have {texts.width}: ask for at most so many"
            raise ApiError(400, complaint, "dimensions", "invalid_value")
        inputs = await self._tokens(body, texts)
        name = f"embd-{uuid.uuid4().hex}"
        answers = await self._answers(model, name, [{"tokens": ids} for ids in inputs], "input")
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _encoded(_shortened(answer["embedding"], width, normal=texts.normalize), encoding),
            }
            for index, answer in enumerate(answers)
        ]
        return {"object": "list", "data": data, "model": model.name, "usage": _usage(inputs)}

    async def classify_texts(self, body: Fields, model: Served, texts: EncoderTexts) -> dict[str, Any]:
        """Answer /v1/classifications of texts.

        Raises
        ------
        ApiError
            As `embed`.
        """
        body.check(CLASSIFICATION)
        if "image" in body:
            complaint = f"image is not for {model.name}, which reads texts: leave it out"
            raise ApiError(400, complaint, "image", "unsupported_parameter")
        given = body.value("input")
        name = f"classify-{uuid.uuid4().hex}"
        if (pairs := _pairs(given)) is not None:
            read = await self._read_pairs(pairs, texts, "input")
            for number, one in enumerate(read):
                if one.cut:
                    complaint = f"input {number} is a pair of more than the {texts.context} tokens that the model reads"
                    raise ApiError(400, f"{complaint}: shorten it", "input", "context_length_exceeded")
            inputs, lines = [one.ids for one in read], [one.line for one in read]
        else:
            inputs = await self._tokens(body, texts)
            lines = [{"tokens": ids} for ids in inputs]
        answers = await self._answers(model, name, lines, "input")
        return _classes(name, model, texts.labels, answers) | {"usage": _usage(inputs)}

    async def rerank(self, body: Fields, model: Served, texts: EncoderTexts) -> dict[str, Any]:
        """Answer /v1/rerank: documents by how well they answer a query, the best first.

        Raises
        ------
        ApiError
            As `embed`.
        """
        body.check(RERANK)
        query, documents = body.text("query"), _documents(body.value("documents"), "documents")
        if not query.strip():
            raise ApiError(400, "query is empty: it has no text", "query", "empty_string")
        top = body.whole("top_n", 0) or len(documents)
        told = body.flag("return_documents", otherwise=True)
        scored = await self._scores(body, model, texts, [(query, document) for document in documents], "documents")
        best = sorted(range(len(documents)), key=lambda index: -scored.scores[index])[:top]
        results = [
            {"index": index, "relevance_score": scored.scores[index]}
            | ({"document": {"text": documents[index]}} if told else {})
            | ({"truncated": True} if scored.pairs[index].cut else {})
            for index in best
        ]
        usage = _usage([pair.ids for pair in scored.pairs])
        return {"id": scored.name, "object": "list", "model": model.name, "usage": usage, "results": results}

    async def score(self, body: Fields, model: Served, texts: EncoderTexts) -> dict[str, Any]:
        """Answer /v1/score: of one text with each of several, or of texts two by two.

        Raises
        ------
        ApiError
            As `embed`.
        """
        body.check(SCORE)
        names = next((names for names in SIDES if any(name in body for name in names)), SIDES[0])
        for name in (name for names in SIDES for name in names if name in body):
            if name not in names:
                complaint = f"{names[0]} and {name} both say what to score: give {' and '.join(SIDES[0])}"
                raise ApiError(400, complaint, name, "invalid_value")
        first, second = (_documents(body.value(name), name) for name in names)
        if len(first) not in (1, len(second)):
            complaint = f"{names[0]} has {len(first)} texts, {names[1]} {len(second)}: give one, or as many"
            raise ApiError(400, complaint, names[0], "invalid_value")
        pairs = [*zip(first * len(second) if len(first) == 1 else first, second, strict=True)]
        scored = await self._scores(body, model, texts, pairs, names[1])
        data = [
            {"object": "score", "index": index, "score": score} | ({"truncated": True} if pair.cut else {})
            for index, (score, pair) in enumerate(zip(scored.scores, scored.pairs, strict=True))
        ]
        found = {"id": scored.name, "object": "list", "created": int(time.time()), "model": model.name, "data": data}
        return found | {"usage": _usage([pair.ids for pair in scored.pairs])}

    async def _scores(
        self, body: Fields, model: Served, texts: EncoderTexts, pairs: Sequence[tuple[str, str]], param: str
    ) -> Scored:
        """Return what the model says of pairs; what is longer than it reads is cut, as sentence-transformers does."""
        if len(texts.labels) != 1:
            complaint = f"model {model.name} names {len(texts.labels)} classes: only of one label there is a score"
            raise ApiError(400, complaint, "model", "model_not_supported")
        activates = body.flag("use_activation", otherwise=body.flag("activation", otherwise=True))
        read = await self._read_pairs(pairs, texts, param)
        name = f"rerank-{uuid.uuid4().hex}"
        answers = await self._answers(model, name, [one.line for one in read], param)
        logits = [float(answer["logits"][0]) for answer in answers]
        return Scored(name, read, [texts.score(logit) for logit in logits] if activates else logits)

    async def _read_pairs(self, pairs: Sequence[tuple[str, str]], texts: EncoderTexts, param: str) -> list[TextPair]:
        _check_count(len(pairs), self._desk.limits.inputs, param)
        try:
            return await asyncio.to_thread(lambda: [texts.pair(*pair) for pair in pairs])
        except HeptiError as error:
            raise ApiError(400, str(error), param, code_of(error)) from None

    async def classify_images(self, images: Sequence[bytes], model: Served, texts: ImageTexts) -> dict[str, Any]:
        """Answer /v1/classifications of images, each as a file.

        Raises
        ------
        ApiError
            If there are none or too many, one is too large, or the ranks cannot read it.
        """
        limits = self._desk.limits
        _check_count(len(images), limits.inputs, "image")
        for number, image in enumerate(images):
            if not 0 < len(image) <= limits.image_bytes:
                complaint = f"image {number} has {len(image)} bytes, it must have 1 to {limits.image_bytes}"
                raise ApiError(413 if image else 400, complaint, "image", "image_size")
        name = f"classify-{uuid.uuid4().hex}"
        lines = ({"image_data": base64.b64encode(image).decode()} for image in images)
        return _classes(name, model, texts.labels, await self._answers(model, name, lines, "image"))

    async def _tokens(self, body: Fields, texts: EncoderTexts) -> list[list[int]]:
        inputs = _inputs(body.value("input"))
        _check_count(len(inputs), self._desk.limits.inputs, "input")
        try:
            found = await asyncio.to_thread(lambda: [_ids(one, texts) for one in inputs])
        except HeptiError as error:
            raise ApiError(400, str(error), "input", code_of(error)) from None
        for number, ids in enumerate(found):
            if len(ids) > texts.context:
                complaint = f"input {number} has {len(ids)} tokens, the model reads {texts.context}: shorten it"
                raise ApiError(400, complaint, "input", "context_length_exceeded")
        return found

    async def _answers(
        self, model: Served, name: str, lines: Iterable[Mapping[str, Any]], param: str
    ) -> list[dict[str, Any]]:
        """Return the ranks' answers to lines, in their order; what they refuse is told by its number in `param`."""

        async def one(index: int, about: AnswerLines) -> dict[str, Any]:
            try:
                return await anext(about)
            except ApiError as error:
                if error.status == 400:
                    raise ApiError(400, f"{param} {index}: {error}", param, "refused") from None
                raise

        return await self._desk.ask_all(model, ({"id": f"{name}-{at}", **line} for at, line in enumerate(lines)), one)


async def images_of(request: Request, body: bytes) -> tuple[str, list[bytes]]:
    """Return the model and the images of a body for /v1/classifications that is a form.

    Raises
    ------
    ApiError
        If it is none, or without either.
    """
    form = await parse_form(request, body)
    model, images = Fields(form).text("model"), await files_of(form, FILES)
    if not images:
        message = "the form has no file called image: curl sends one with -F image=@FILE"
        raise ApiError(400, message, "image", "missing_required_parameter")
    Fields({key: value for key, value in form.multi_items() if key not in FILES}).check(CLASSIFICATION)
    return model, images


def _pairs(given: Any) -> list[tuple[str, str]] | None:
    """Return pairs of texts, each like {"pair": [a, b]}, one or a list; None where the input is something else."""
    entries = given if isinstance(given, list) else [given]
    if not entries or not any(isinstance(one, dict) for one in entries):
        return None
    found = []
    for number, one in enumerate(entries):
        where = f"input[{number}]" if entries is given else "input"
        pair = one.get("pair") if isinstance(one, dict) and len(one) == 1 else None
        if not isinstance(pair, list) or len(pair) != 2:
            raise ApiError(400, f'{where} must be like {{"pair": ["a text", "another"]}}', where, "invalid_value")
        found.append((check_text(pair[0], f"{where}.pair[0]"), check_text(pair[1], f"{where}.pair[1]")))
    return found


def _documents(given: Any, name: str) -> list[str]:
    """Return texts: one, or a list, each a string or like {"text": "…"}."""
    entries = [given] if isinstance(given, str) else given
    if not isinstance(entries, list):
        raise wrong(name, "a string or a list of strings", given)
    _check_count(len(entries), MOST_WHOLE, name)
    where = [name if entries is not given else f"{name}[{number}]" for number in range(len(entries))]
    alone = [one["text"] if isinstance(one, dict) and one.keys() == {"text"} else one for one in entries]
    return [check_text(one, place) for one, place in zip(alone, where, strict=True)]


def images_in(body: Fields) -> list[bytes]:
    """Return the images of a JSON body: base64, alone or after `data:image/…;base64,`.

    Raises
    ------
    ApiError
        If there are none.
    """
    body.check(CLASSIFICATION)
    if "image" in body and "input" in body:
        raise ApiError(400, "image and input both say what to look at: give image", "input", "invalid_value")
    given = body.value("image" if "image" in body else "input")
    if not isinstance(given, list):
        return [_image(given, "image")]
    return [_image(one, f"image[{number}]") for number, one in enumerate(given)]


def _image(given: Any, name: str) -> bytes:
    if not isinstance(given, str):
        raise wrong(name, "a string of base64, or a list of them", given)
    head, comma, data = given.partition(",")
    if comma and not (head.startswith("data:") and head.endswith(";base64")):
        raise ApiError(400, f"{name} must be base64: nothing is fetched from elsewhere", name, "invalid_value")
    try:
        return base64.b64decode(data if comma else given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(400, f"{name} is no base64: {error}", name, "invalid_value") from None


def _inputs(given: Any) -> list[Any]:
    """Return the texts, or lists of token ids, of an input: one of either, or a list."""
    one = isinstance(given, list) and bool(given) and all(type(token) is int for token in given)
    inputs = [given] if isinstance(given, str) or one else given
    if not isinstance(inputs, list):
        raise wrong("input", "a string, a list of strings, or token ids", given)
    for number, text in enumerate(inputs):
        where = f"input[{number}]" if inputs is given else "input"
        if isinstance(text, str):
            if not check_text(text, where).strip():
                raise ApiError(400, f"{where} is empty: it has no text", where, "empty_string")
        elif not isinstance(text, list) or not all(type(token) is int for token in text):
            raise wrong(where, "a string or a list of token ids", text)
        elif not text:
            raise ApiError(400, f"{where} is empty: it has no tokens", where, "empty_array")
    return inputs


def _ids(text: Any, texts: EncoderTexts) -> list[int]:
    return texts.prompt(text) if isinstance(text, str) else texts.ids(text)


def _check_count(count: int, most: int, name: str) -> None:
    if not count:
        raise ApiError(400, f"{name} is empty: give one at least", name, "empty_array")
    if count > most:
        raise ApiError(400, f"{name} has {count} entries, at most {most} are taken", name, "array_too_long")


def _shortened(embedding: Sequence[float], width: int | None, *, normal: bool) -> Sequence[float]:
    """Return the first numbers of an embedding, of length one again where the whole is."""
    if width is None or width == len(embedding):
        return embedding
    short = np.asarray(embedding[:width], np.float32)
    if normal:
        short = short * np.float32(1 / max(float(np.sqrt(np.square(short).sum(dtype=np.float64))), 1e-12))
    found: list[float] = short.tolist()
    return found


def _encoded(embedding: Sequence[float], encoding: str) -> Any:
    """Return an embedding as numbers, or their float32 bytes in base64."""
    if encoding == "float":
        return embedding
    return base64.b64encode(np.asarray(embedding, "<f4").tobytes()).decode()


def _classes(name: str, model: Served, labels: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the ranks say of each: labels and scores, or boxes; scores are in the order of `labels`."""
    data = [
        {"object": "classification", "index": index, **{key: answer[key] for key in SAID if key in answer}}
        for index, answer in enumerate(answers)
    ]
    found = {"id": name, "object": "list", "created": int(time.time()), "model": model.name, "data": data}
    return found | {"labels": list(labels)} if labels else found


def _usage(inputs: Sequence[Sequence[int]]) -> dict[str, int]:
    tokens = sum(len(ids) for ids in inputs)
    return {"prompt_tokens": tokens, "total_tokens": tokens}
