"""/v1/embeddings and /v1/classifications: texts and images, several in a request, each of them a line for the ranks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request

from launch.serve.metrics import Served
from launch.serve.texts import EncoderTexts, ImageTexts, code_of
from launch.serve.transport import ApiError, Desk, Fields, check_text, files_of, parse_form, wrong
from solver.base.errors import HeptiError

# Of one request that are handed in together: enough to fill a batch, and others come in between.
TOGETHER = 16
AGAIN_S = 0.05  # between tries to get the next one into a full queue
FILES = ("image", "images", "file", "files")  # parts of a form that are images
FORM = "multipart/form-data"
EMBEDDING_FORMATS = ("float", "base64")
SAID = ("label", "score", "scores", "logits", "top5", "boxes")  # of the ranks' lines, what clients are told


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
        encoding = body.value("encoding_format") or "float"
        if encoding not in EMBEDDING_FORMATS:
            complaint = f"encoding_format must be one of {', '.join(EMBEDDING_FORMATS)}"
            raise ApiError(400, complaint, "encoding_format", "invalid_value")
        width = body.whole("dimensions", 1)
        if width not in (None, texts.width):
            complaint = f"dimensions is {width}, embeddings of {model.name} have {texts.width}"
            raise ApiError(400, complaint, "dimensions", "invalid_value")
        inputs = await self._tokens(body, texts)
        name = f"embd-{uuid.uuid4().hex}"
        answers = await self._answers(model, name, [{"tokens": ids} for ids in inputs], "input")
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(answer["embedding"], encoding)}
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
        inputs = await self._tokens(body, texts)
        name = f"classify-{uuid.uuid4().hex}"
        answers = await self._answers(model, name, [{"tokens": ids} for ids in inputs], "input")
        return _classes(name, model, texts.labels, answers) | {"usage": _usage(inputs)}

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
        """Return the ranks' answers to lines, in their order; if one fails, the others are cancelled.

        What the ranks refuse is told by its number in the field `param`.
        A full queue refuses all of them or none: once one is in, the others wait for room.
        """
        numbered = iter(enumerate(lines))
        answers: dict[int, dict[str, Any]] = {}
        begun = asyncio.Event()
        give_up = time.monotonic() + self._desk.limits.first_s

        async def work() -> None:
            for index, line in numbered:
                whole = {"id": f"{name}-{index}", **line}
                while index not in answers:
                    try:
                        answers[index] = await self._answer(model, whole, begun)
                    except ApiError as error:
                        if error.status == 400:
                            raise ApiError(400, f"{param} {index}: {error}", param, "refused") from None
                        if error.status != 429 or not begun.is_set() or time.monotonic() > give_up:
                            raise
                        await asyncio.sleep(AGAIN_S)

        refusal: ApiError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(work())
        except* ApiError as errors:
            refusal = _first(errors)  # what is raised here would be raised as a group
        if refusal is not None:
            raise refusal
        return [answer for _, answer in sorted(answers.items())]

    async def _answer(self, model: Served, line: Mapping[str, Any], begun: asyncio.Event) -> dict[str, Any]:
        async with self._desk.ask(model, line) as lines:
            begun.set()
            return await anext(lines)


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
    return model, images


def images_in(body: Fields) -> list[bytes]:
    """Return the images of a JSON body: base64, alone or behind `data:image/…;base64,`.

    Raises
    ------
    ApiError
        If there are none.
    """
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


def _first(errors: BaseExceptionGroup[ApiError]) -> ApiError:
    """Return one of several errors."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ApiError)
    return error
