"""What a convolutional network is asked: images, from files, folders, lists of paths and standard input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hepti_mpi.requests.images import Frame, below, image_data, read_pixels
from hepti_mpi.requests.inputs import IMAGE_SUFFIXES, LineReader, check_keys, images_in, named_entry
from hepti_mpi.requests.service_lines import Complaint, ServiceLines
from hepti_mpi.requests.stdin import read_lines
from solver.base.errors import HeptiError, explained
from solver.model.convnet import ConvNet, Picture

LISTS = (".txt", ".jsonl")


@dataclass(frozen=True, slots=True, eq=False)
class PictureRequest:
    """One image to compute."""

    id: str | int
    pixels: NDArray[np.uint8]  # [C, H, W], of the network's input
    frame: Frame  # which part of the image that is
    line: int = 0  # the number of the JSON line that it stands on; 0: on none


class PictureReader:
    """Turns images into requests that the network can take.

    Parameters
    ----------
    net
        The network.
    complain
        Takes what is wrong with a request that is left out; the others are still answered.
    by_id
        Whether answers are found by their ids, so that no two lines may have the same; else an id is only an echo.
    images
        The folder below which lines may name images, and where their paths begin; None: JSON lines and standard input
        may name none, and a `.txt`, which lists paths as a command line does, any.
    """

    def __init__(
        self, net: ConvNet, complain: Callable[[Complaint], object], *, by_id: bool = True, images: Path | None = None
    ) -> None:
        self._net = net
        self._complain = complain
        self._images = images
        self._reader = LineReader[PictureRequest](complain, by_id=by_id)

    def random(self, seed: int) -> PictureRequest:
        """Make a request of random pixels, always the same of a seed."""
        channels, height, width = self._net.shapes[self._net.input]
        pixels = np.random.default_rng(seed).integers(0, 256, (channels, height, width), np.uint8)
        return PictureRequest("random", pixels, Frame(width, height))

    def count(self, path: Path) -> int:
        """Return how many requests `file` yields, or complains of.

        Raises
        ------
        HeptiError
            As `file`.
        """
        if path.suffix not in LISTS:
            return len(_images_of(path))
        with explained(f"cannot read --input {path}", OSError), path.open("rb") as lines:
            return sum(1 for _ in lines)

    def file(self, path: Path) -> Iterator[PictureRequest]:
        """Yield the requests of an image, of all images in a folder, or of a `.txt` or `.jsonl`, one a line.

        Each is read when it is asked for. The same file may be read again.

        Raises
        ------
        HeptiError
            If the file cannot be read at all, or the folder has no images; what is wrong with one image goes to
            `complain`.
        """
        if path.suffix in LISTS:
            with explained(f"cannot read --input {path}", OSError), path.open("rb") as lines:
                make = self._json if path.suffix == ".jsonl" else self._listed
                yield from self._reader.of(enumerate(lines, start=1), path.name, make)
            return
        for name, image in _images_of(path):
            try:
                request = self._picture(name, image)
            except HeptiError as error:
                self._complain(Complaint(str(error)))
            else:
                yield request

    def standard_input(self, lines: ServiceLines) -> Iterator[PictureRequest]:
        """Yield the requests of lines on standard input, JSON or paths, each as soon as it is there."""
        return self._reader.of(lines.of(read_lines()), "standard input", self._json_or_path)

    def _json_or_path(self, number: int, line: bytes) -> PictureRequest:
        text = _text_of(line)
        if text.lstrip().startswith("{"):
            return self._json(number, line)
        return replace(self._named(number, text), line=number)

    def _json(self, number: int, line: bytes) -> PictureRequest:
        name, entry = named_entry(number, _text_of(line), '{"id": 1, "image": "…"}')
        ways = {"image": self._named, "image_data": self._sent}
        given = [key for key in ways if key in entry]
        if not given:
            raise HeptiError(f"network {self._net.name} needs an image")
        check_keys(entry, given, (), ways)
        return replace(ways[given[0]](name, entry[given[0]]), line=number)

    def _named(self, name: str | int, path: Any) -> PictureRequest:
        """Read an image that a line names, which is data, of whoever sent it."""
        if not isinstance(path, str):
            raise HeptiError("image is no string")
        if self._images is None:
            raise HeptiError("lines may name images only below a folder that you name: add --images FOLDER")
        return self._picture(name, below(self._images, path))

    def _sent(self, name: str | int, data: Any) -> PictureRequest:
        return self._picture(name, image_data(data))

    def _listed(self, number: int, line: bytes) -> PictureRequest:
        text = _text_of(line)
        return self._picture(number, Path(text)) if self._images is None else self._named(number, text)

    def _picture(self, name: str | int, file: Path | bytes) -> PictureRequest:
        # Halves of surrogate pairs come from JSON's escapes and stray bytes: no file holds them.
        with explained("the id is not Unicode", UnicodeEncodeError):
            str(name).encode()
        net = self._net
        return PictureRequest(name, *read_pixels(file, net.shapes[net.input], net.picture or Picture()))


def _text_of(line: bytes) -> str:
    with explained("not UTF-8", UnicodeDecodeError):
        text = line.decode("utf-8-sig").rstrip("\r\n")
    if not text.strip():
        raise HeptiError("the line is empty")
    return text


def _images_of(path: Path) -> list[tuple[str, Path]]:
    """Return an image, or all in a folder and below it by their paths in it, each with its id."""
    if path.is_dir():
        return images_in(path)
    if not path.exists():
        raise HeptiError(f"--input {path}: there is no such file or folder")
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        raise HeptiError(f"--input {path}: not a .txt, a .jsonl, an image or a folder, nor - for standard input")
    return [(path.stem, path)]
