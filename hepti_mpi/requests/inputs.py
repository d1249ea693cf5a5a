"""What is asked: texts, token ids and images, from the command line, files and standard input."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from hepti_mpi.requests.images import below, image_data, read_image
from hepti_mpi.requests.service_lines import Complaint, ServiceLines, checked_id, id_of
from hepti_mpi.requests.stdin import MOST_LINE_BYTES, check_length, read_lines
from solver.base.arrays import Array
from solver.base.errors import HeptiError, explained
from solver.base.phrases import excerpt, printable
from solver.model.spec import ImageInput, ModelSpec, TextInput
from weights.inputs.tokenize import Tokenizer

# Requests of a file run together up to this many rows: more rows make better GEMMs, and later answers.
BATCH_ROWS = 512
VALUE_SHOWN = 40  # characters of what is no token
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One thing to compute: token ids, or pixels."""

    id: str | int
    content: Sequence[int] | Array  # ids, or pixels [channels, height, width]
    rows: int
    text: str = ""
    truncated: bool = False
    line: int = 0  # the number of the JSON line that it stands on; 0: on none
    pair: bool = False  # the ids are of two texts, one after the other
    types: Sequence[int] = ()  # of a pair, to which of the two each row belongs, where the model tells them apart


def rows_of(requests: Sequence[Request]) -> int:
    """Return how many rows requests have together."""
    return sum(request.rows for request in requests)


def batches_of(requests: Iterable[Request], is_there: Callable[[], bool] = lambda: True) -> Iterator[list[Request]]:
    """Yield requests in order, together up to BATCH_ROWS rows; none waits for one that is not there yet."""
    batch: list[Request] = []
    for request in requests:
        if batch and rows_of(batch) + request.rows > BATCH_ROWS:
            yield batch
            batch = []
        batch.append(request)
        if not is_there():
            yield batch
            batch = []
    if batch:
        yield batch


def most_ahead(spec: ModelSpec) -> int:
    """Return how many requests of standard input are made ahead: those of a batch; pixels of more would take memory."""
    return max(1, BATCH_ROWS // spec.input.rows) if isinstance(spec.input, ImageInput) else BATCH_ROWS


class Reader:
    """Turns texts, ids and images into requests that the model can take.

    Parameters
    ----------
    spec
        The model.
    tokenizer
        Text of its tokenizer.json; None: token ids only.
    complain
        Takes what is wrong with a request that is left out; the others are still answered.
    by_id
        Whether answers are found by their ids, so that none may come twice; else an id is only an echo.
    images
        The folder below which lines may name images, and where their paths begin; None: JSON lines may name none, and
        a `.txt`, which lists paths as a command line does, any. Lines of standard input are as JSON lines.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: str | None,
        complain: Callable[[Complaint], object],
        *,
        by_id: bool = True,
        images: Path | None = None,
    ) -> None:
        self._spec = spec
        self._images = images
        self._complain = complain
        self._reader = LineReader[Request](complain, by_id=by_id)
        self._tokenizer = None
        if tokenizer is not None and isinstance(spec.input, TextInput):
            self._tokenizer = Tokenizer(tokenizer, spec.input.max_rows, spec.input.prompt)

    def texts(self, texts: Iterable[str]) -> list[Request]:
        """Make requests of texts given on the command line.

        Raises
        ------
        HeptiError
            If one of them is empty.
        """
        return [self._text(number, text) for number, text in enumerate(texts, start=1)]

    def ranked(self, query: str, documents: Iterable[tuple[str, str]]) -> list[Request]:
        """Make requests of a query with each of some documents, by their names.

        Raises
        ------
        HeptiError
            If the model gives no score to a pair, or there is no document.
        """
        spec = self._spec
        if not isinstance(spec.input, TextInput) or len(spec.labels) != 1:
            what = f"names {len(spec.labels)} classes" if spec.labels else "gives no scores"
            raise HeptiError(f"model {spec.name} {what}: documents are ranked by a classifier of texts with one label")
        found = [replace(self._pair(name, [query, text]), text=text) for name, text in documents]
        if not found:
            raise HeptiError("there is no document: name files, or give lines on standard input")
        return found

    def random(self, rows: int) -> Request:
        """Make a request of `rows` random rows, always the same."""
        numbers = np.random.default_rng(0)
        source = self._spec.input
        if isinstance(source, ImageInput):
            if rows != source.rows:
                raise HeptiError(f"--random is {rows}, but every image of {self._spec.name} has {source.rows} rows")
            pixels = numbers.standard_normal((source.channels, source.height, source.width), np.float32)
            return Request("random", pixels, rows)
        if not 1 <= rows <= source.positions:
            raise HeptiError(f"--random is {rows}, but {self._spec.name} has 1 to {source.positions} positions")
        ids = numbers.integers(0, source.vocab, rows)
        ids[ids == source.padding] = 0  # no word, where it is padding
        return self._tokens("random", ids.tolist())

    def file(self, path: Path) -> Iterator[Request]:
        """Yield the requests of a file: `.txt` and `.jsonl` one a line, or an image; or of all files in a folder.

        In a folder a `.txt` is one text.

        Raises
        ------
        HeptiError
            If the file cannot be read at all, or the folder has none; what is wrong with one line, or one file of a
            folder, goes to `complain`.
        """
        if path.is_dir():
            yield from self._folder(path)
            return
        if path.suffix.lower() in IMAGE_SUFFIXES:
            yield self._image(path.stem, path)
            return
        if path.suffix not in (".txt", ".jsonl"):
            raise HeptiError(f"--input {path}: not a .txt, a .jsonl, an image or a folder, nor - for standard input")
        with explained(f"cannot read --input {path}", OSError), path.open("rb") as lines:
            numbered = enumerate(lines, start=1)
            yield from self._reader.of(numbered, path.name, self._json if path.suffix == ".jsonl" else self._plain)

    def standard_input(self, lines: ServiceLines) -> Iterator[Request]:
        """Yield the requests of lines on standard input, JSON or plain, each as soon as it is there."""
        return self._reader.of(lines.of(read_lines()), "standard input", self._json_or_plain)

    def _folder(self, folder: Path) -> Iterator[Request]:
        reads_images = isinstance(self._spec.input, ImageInput)
        for name, path in (images_in if reads_images else texts_in)(folder):
            try:
                yield self._image(name, path) if reads_images else self._text(name, _content(path))
            except HeptiError as error:
                self._complain(Complaint(str(error) if reads_images else f"{path}: {error}"))

    def _json_or_plain(self, number: int, line: bytes) -> Request:
        """Read what begins with {, as every request does that a program writes, as JSON, and all else as it is."""
        if line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{") or not line.strip():
            return self._json(number, line)
        if not isinstance(self._spec.input, ImageInput):
            return replace(self._plain(number, line), line=number)
        with explained("not UTF-8", UnicodeDecodeError):
            return replace(self._named_image(number, line.decode("utf-8-sig").rstrip("\r\n")), line=number)

    def _plain(self, number: int, line: bytes) -> Request:
        with explained("not UTF-8", UnicodeDecodeError):
            text = line.decode("utf-8-sig").rstrip("\r\n")
        if isinstance(self._spec.input, ImageInput):
            return self._image(number, Path(text) if self._images is None else below(self._images, text))
        return self._text(number, text)

    def _json(self, number: int, line: bytes) -> Request:
        name, entry = named_entry(number, line, '{"id": 1, "text": "…"}')
        ways = {"text": self._text, "pair": self._pair, "tokens": self._tokens}
        if isinstance(self._spec.input, ImageInput):
            ways = {"image": self._named_image, "image_data": self._image_data}
        given = [key for key in ways if key in entry]
        if not given:
            needed = "an image" if "image" in ways else "a text, a pair or tokens"
            raise HeptiError(f"model {self._spec.name} needs {needed}")
        check_keys(entry, given, ["types"] if given == ["tokens"] else [], ways)
        request = replace(ways[given[0]](name, entry[given[0]]), line=number)
        return self._typed(request, entry["types"]) if "types" in entry else request

    def _text(self, name: str | int, text: Any) -> Request:
        if not isinstance(text, str) or not text.strip():
            raise HeptiError(
                "the text is empty" if text in ("", None) or isinstance(text, str) else "text is no string"
            )
        check_unicode(text, "the text")
        if isinstance(self._spec.input, ImageInput):
            raise HeptiError(f"model {self._spec.name} reads images, not texts")
        if self._tokenizer is None:
            raise HeptiError(
                f"the weights of {self._spec.name} came without a tokenizer: give --random ROWS, or "
                'lines like {"id": 1, "tokens": [101, 102]}'
            )
        tokens = self._tokenizer(text)
        if not tokens.ids:
            raise HeptiError("the tokenizer makes no token of the text")
        self._check([*tokens.ids])  # an added token may be none of the model's
        return Request(name, tokens.ids, len(tokens.ids), text, tokens.truncated)

    def _pair(self, name: str | int, texts: Any) -> Request:
        """Read two texts, one after the other, as cross-encoders do."""
        if not isinstance(texts, list) or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise HeptiError('pair must be two texts, like ["a question", "a text"]')
        source = self._source_of_pairs()
        if self._tokenizer is None:
            raise HeptiError(f"the weights of {self._spec.name} came without a tokenizer: give tokens and types")
        for text in texts:
            check_unicode(text, "the text")
        tokens = self._tokenizer(*texts)
        found = Request(name, tokens.ids, len(tokens.ids), " | ".join(texts), tokens.truncated)
        return replace(found, pair=True, types=source.types_of(tokens.types))

    def _typed(self, request: Request, types: Any) -> Request:
        """Return a request of ids as that of a pair; its types are none where the model does not tell texts apart."""
        source = self._source_of_pairs()
        if not isinstance(types, list) or not all(type(kind) is int for kind in types):
            raise HeptiError("types must be a list of integers")
        if types and len(types) != request.rows:
            raise HeptiError(f"{request.rows} tokens and {len(types)} types: give one of each")
        return replace(request, pair=True, types=source.types_of(types))

    def _source_of_pairs(self) -> TextInput:
        source = self._spec.input
        assert isinstance(source, TextInput)
        if not self._spec.labels:
            raise HeptiError(f"model {self._spec.name} embeds texts one by one: pairs are for classifiers")
        if len(self._spec.labels) == 1 and not self._spec.pair_scores:
            raise HeptiError(f"the weights of {self._spec.name} are older than pairs: convert them again")
        return source

    def _tokens(self, name: str | int, ids: Any) -> Request:
        source = self._spec.input
        assert isinstance(source, TextInput)
        self._check(ids)
        if len(ids) > source.positions:
            raise HeptiError(f"{len(ids)} tokens, but {self._spec.name} has {source.positions} positions: shorten it")
        return Request(name, ids, len(ids))

    def _check(self, ids: Any) -> None:
        """Refuse ids that are none of the model's, and padding where it stands for no position."""
        source = self._spec.input
        assert isinstance(source, TextInput)
        check_ids(ids, self._spec.name, source.vocab)
        if source.padding and source.padding in ids:
            raise HeptiError(
                f"token {source.padding} is padding, of which {self._spec.name} counts no positions: leave it out"
            )

    def _named_image(self, name: str | int, path: Any) -> Request:
        """Read an image that a line names, which is data, of whoever sent it."""
        if not isinstance(path, str):
            raise HeptiError("image is no string")
        if self._images is None:
            raise HeptiError("lines may name images only below a folder that you name: add --images FOLDER")
        return self._image(name, below(self._images, path))

    def _image_data(self, name: str | int, data: Any) -> Request:
        assert isinstance(self._spec.input, ImageInput)
        return Request(name, read_image(image_data(data), self._spec.input), self._spec.input.rows)

    def _image(self, name: str | int, path: Path) -> Request:
        if not isinstance(self._spec.input, ImageInput):
            raise HeptiError(f"model {self._spec.name} reads texts, not images")
        return Request(name, read_image(path, self._spec.input), self._spec.input.rows, str(path))


def images_in(folder: Path) -> list[tuple[str, Path]]:
    """Return all images in a folder and below it, each after its path in the folder.

    Raises
    ------
    HeptiError
        If there is none.
    """
    return _files_in(folder, "images", IMAGE_SUFFIXES)


def texts_in(folder: Path) -> list[tuple[str, Path]]:
    """Return all texts in a folder, as `images_in`."""
    return _files_in(folder, "texts", (".txt",))


def _files_in(folder: Path, what: str, suffixes: Sequence[str]) -> list[tuple[str, Path]]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    files = [(path.relative_to(folder).as_posix(), path) for path in found if not path.is_dir()]
    if not files:
        raise HeptiError(f"--input {folder}: no {what} ({', '.join(suffixes)}) in this folder")
    return files


def _content(path: Path) -> str:
    with explained("cannot read it", OSError), path.open("rb") as file:
        content = file.read(MOST_LINE_BYTES + 1)
    if len(content) > MOST_LINE_BYTES:
        raise HeptiError(f"the text is longer than {MOST_LINE_BYTES} bytes: make several of it")
    with explained("not UTF-8", UnicodeDecodeError):
        return content.decode("utf-8-sig").rstrip("\r\n")


Document = tuple[str, str]  # its name, and its text


class HasId(Protocol):
    """Something that is asked, by its id."""

    @property
    def id(self) -> str | int:
        """Of the line, or its number."""


Asked = TypeVar("Asked", bound=HasId)


class LineReader(Generic[Asked]):
    """Makes requests of lines; what is wrong with one is told by its number, and the others are still made.

    Parameters
    ----------
    complain
        Takes what is wrong.
    by_id
        Whether no two lines may have the same id.
    """

    def __init__(self, complain: Callable[[Complaint], object], *, by_id: bool) -> None:
        self._complain = complain
        self._seen: dict[str, int] | None = {} if by_id else None

    def of(
        self, lines: Iterable[tuple[int, bytes]], source: str, make: Callable[[int, bytes], Asked]
    ) -> Iterator[Asked]:
        """Yield what `make` makes of a line's number, from 1 on, and the line."""
        for number, line in lines:
            try:
                check_length(line)
                request = make(number, line)
                self._check_id(request.id, number)
            except HeptiError as error:
                text = f"{source}, line {number}: {error}"
                self._complain(Complaint(text, number, id_of(number, line), str(error)))
            else:
                yield request

    def _check_id(self, name: str | int, number: int) -> None:
        first = number if self._seen is None else self._seen.setdefault(str(name), number)
        if first != number:
            raise HeptiError(f"id {name!r} stands on line {first} already: give each request its own")


def named_entry(number: int, line: str | bytes, example: str) -> tuple[str | int, dict[str, Any]]:
    """Return the id and the object of a JSON line; its number is its id where it has none.

    Raises
    ------
    HeptiError
        If it is no object like the example, or its id is none.
    """
    if not line.strip():
        raise HeptiError("the line is empty")
    with explained("not JSON", (ValueError, RecursionError)):
        entry = json.loads(line)
    if not isinstance(entry, dict):
        raise HeptiError(f"not an object like {example}")
    return checked_id(entry.get("id", number)), entry


def check_keys(entry: Mapping[str, Any], given: Sequence[str], more: Iterable[str], ways: Iterable[str]) -> None:
    """Refuse a line that asks in several ways at once, or has a key that nothing reads: its answer would be another's.

    Parameters
    ----------
    entry
        The line.
    given
        In which ways it asks, at least one.
    more
        What it may have besides.
    ways
        In which ways it may ask.

    Raises
    ------
    HeptiError
        Naming the keys.
    """
    if len(given) > 1:
        raise HeptiError(f"it has {' and '.join(given)}: give one")
    if unknown := [key for key in entry if key not in ("id", *given, *more)]:
        known = ", ".join(("id", *ways, *more))
        raise HeptiError(f"nothing reads the key {printable(unknown[0])} (known: {known}): leave it out")


def check_ids(ids: Any, model: str, vocab: int) -> None:
    """Refuse what is no list of a model's token ids."""
    if not isinstance(ids, list) or not ids:
        raise HeptiError("tokens must be a list of at least one integer")
    for token in ids:
        if type(token) is not int:
            raise HeptiError(f"tokens must be integers, {excerpt(repr(token), VALUE_SHOWN)} is none")
        if not 0 <= token < vocab:
            raise HeptiError(f"token {token} is out of range: {model} has {vocab} tokens, from 0 on")


def check_unicode(text: str, what: str) -> None:
    """Refuse halves of surrogate pairs, which come from JSON's escapes and stray bytes: no file holds them."""
    with explained(f"{what} is not Unicode", UnicodeEncodeError):
        text.encode()


def read_documents(files: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of files, or of the lines of standard input, which are numbered.

    Raises
    ------
    HeptiError
        If a file cannot be read, or two have one name.
    """
    seen: set[str] = set()
    for name, text in _of_files(files) if files else _of_lines(read_lines(), "standard input"):
        if name in seen:
            raise HeptiError(f"{name} stands twice among the documents")
        seen.add(name)
        yield name, text


def _of_files(files: Sequence[Path]) -> Iterator[Document]:
    for path in files:
        if path.is_dir():
            yield from ((f"{path / name}", _content(inside)) for name, inside in texts_in(path))
        elif path.suffix == ".jsonl":
            with explained(f"cannot read {path}", OSError), path.open("rb") as lines:
                yield from _of_json(lines, path)
        else:
            with explained(str(path), HeptiError):
                yield str(path), _content(path)


def _of_json(lines: Iterable[bytes], path: Path) -> Iterator[Document]:
    for number, line in enumerate(lines, start=1):
        with explained(f"{path}, line {number}: not JSON", (ValueError, RecursionError)):
            entry = json.loads(line)
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            raise HeptiError(f'{path}, line {number}: not like {{"id": 1, "text": "…"}}')
        yield str(entry.get("id", number)), entry["text"]


def _of_lines(lines: Iterable[bytes], source: str) -> Iterator[Document]:
    for number, line in enumerate(lines, start=1):
        check_length(line)
        with explained(f"{source}, line {number}: not UTF-8", UnicodeDecodeError):
            text = line.decode("utf-8-sig").rstrip("\r\n")
        if text.strip():
            yield str(number), text
