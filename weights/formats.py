"""Models in the formats of others: a checkpoint directory, a .safetensors in one, a .gguf, an .onnx.

Where a command is given one it is converted once, into the user's cache. The room `solver` meets this only where a file
is named, as it does weights files. What reads other formats is imported only where there is one: every job comes by.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from solver.base.cache import cache_folder
from solver.base.errors import HeptiError, explained
from solver.base.hub import MAKE_ONE, missing, refuse_hub_name
from weights.file.json_files import refuse_pointer
from weights.file.store import ENCODER, LANGUAGE_MODEL, NETWORK, TensorFile, command_for, stored_kind

VERSION = 3  # of what is made of a source; what is in the cache of another is made again
ONNX, GGUF, SAFETENSORS = ".onnx", ".gguf", ".safetensors"
CHECKPOINT = (".json", ".jinja", ".txt", ".model", SAFETENSORS)  # what is read of a checkpoint directory


def model_kind(path: Path) -> str:
    """Return what a model file or checkpoint directory holds, in the words of `weights.file.store`; "" if nothing."""
    refuse_pointer(path)
    if path.suffix == ONNX:
        return NETWORK
    if path.suffix == GGUF:
        return LANGUAGE_MODEL
    if path.is_dir() or path.suffix == SAFETENSORS:
        from weights.decoders.convert import is_language_model

        return LANGUAGE_MODEL if is_language_model(checkpoint_folder(path)) else ENCODER
    return stored_kind(path)


def checkpoint_folder(path: Path) -> Path:
    """Return a checkpoint directory, for a .safetensors the one that it lies in.

    Raises
    ------
    HeptiError
        If the directory holds no checkpoint, no config.json lies beside the file, or the directory's weights are in
        other files.
    """
    if path.is_dir():
        from weights.convert.checkpoint import check_folder

        with explained(f"cannot read {path}", OSError):
            check_folder(path)
        return path
    refuse_pointer(path)
    if path.suffix != SAFETENSORS:
        return path
    if not path.is_file():
        raise HeptiError(f"there is no file {path}: hf download NAME --local-dir DIR gets a checkpoint")
    if not (path.parent / "config.json").is_file():
        raise HeptiError(f"{path} has no config.json beside it, which says what its tensors are: put it there")
    from weights.convert.checkpoint import weight_files

    files = weight_files(path.parent, "AutoModel")
    if path.resolve() not in [file.resolve() for file in files]:
        raise HeptiError(f"{path} is not what its folder is read from, which is {files[0].name}: name the folder")
    return path.parent


def weights_path(source: Path, wanted: str = "", say: Callable[[str], object] | None = None) -> Path:
    """Return the weights file of a model; what is none is converted into the user's cache, if it is not there yet.

    Parameters
    ----------
    source
        A weights file, or a model in another format.
    wanted
        What it must hold, in the words of `weights.file.store`; "": anything. What is in another format is refused
        before it is converted, a weights file by whoever opens it.
    say
        Takes the line that says so; None: it goes to stderr.

    Raises
    ------
    HeptiError
        If it is not there, is a hub's name, holds something else, or cannot be converted; nothing is left behind.
    """
    refuse_hub_name(str(source))
    if not source.is_dir() and source.suffix not in (ONNX, GGUF, SAFETENSORS):
        if not source.exists():
            raise HeptiError(_missing(source))
        return source
    kind, source = model_kind(source), checkpoint_folder(source)
    if wanted and kind != wanted:
        raise HeptiError(f"{source} is {kind}, here {wanted} is needed: {command_for(kind)} takes it")
    if not source.exists():
        raise HeptiError(f"there is no file {source}: hf download NAME --local-dir DIR gets models of others")
    files = _files(source)
    where = f"{source.resolve().stem if source.is_file() else source.resolve().name}-{_digest([source.resolve()])}"
    found = cache_folder() / "models" / f"{where}-{_digest([VERSION, *files])}.h5"
    if not _is_whole(found):
        with _opened(source, kind, say or _say) as write:  # what cannot be computed is refused here
            with explained(f"cannot make {found.parent}", OSError):
                found.parent.mkdir(parents=True, exist_ok=True)
            (say or _say)(f"{source} is converted once: {found} is read from now on")
            # Two that convert at once do not write into each other's file.
            own = found.with_name(f"{os.getpid()}-{found.name}")
            write(own)
            own.replace(found)
        for old in found.parent.glob(f"{where}-*.h5"):  # of what the source was before
            if old != found:
                old.unlink(missing_ok=True)
    return found


def _missing(source: Path) -> str:
    """Return what a path is that is not there, and how to come by a weights file."""
    from solver.model.named import NAMED_MODELS
    from solver.model.named_decoders import NAMED_DECODERS
    from weights.networks_zoo import ZOO

    if str(source) in (*NAMED_MODELS, *NAMED_DECODERS, *ZOO):
        return f"{source} is the name of an architecture, here a weights file is needed, as {source}.h5: {MAKE_ONE}"
    return missing(source)


@contextmanager
def _opened(source: Path, kind: str, say: Callable[[str], object]) -> Iterator[Callable[[Path], object]]:
    """Open a model in another format; give what writes its weights file."""
    if kind == NETWORK:
        from weights.file.networks import write_network
        from weights.networks.convert import read_network

        try:
            net, tensors, origin = read_network(source)
        except HeptiError as error:
            if " --" in str(error):
                raise HeptiError(f"{error}, of hepti convert") from error
            raise
        for note in net.notes:
            say(f"{source}: {note}")
        yield lambda path: write_network(path, net, tensors, origin)
    elif kind == ENCODER:
        from weights.convert.convert import open_encoder, write_encoder

        with open_encoder(source) as encoder:
            yield partial(write_encoder, encoder)
    else:
        from weights.decoders.convert import open_checkpoint, write_checkpoint
        from weights.decoders.gguf import open_gguf

        with (open_gguf if source.suffix == GGUF else open_checkpoint)(source) as decoder:
            yield lambda path: write_checkpoint(decoder, path, decoder.precision)


def _files(source: Path) -> list[tuple[str, int, int]]:
    """Return the name, size and time of all that is read: where one of them changes, the source is another."""
    if source.is_dir():
        files: Iterable[Path] = (path for path in source.rglob("*") if path.suffix in CHECKPOINT)
    else:  # weights of ONNX may lie in files of their own
        files = source.parent.glob(f"{source.stem}*") if source.suffix == ONNX else [source]
    with explained(f"cannot read {source}", OSError):
        return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def _digest(facts: Iterable[object]) -> str:
    return hashlib.sha256(repr([str(fact) for fact in facts]).encode()).hexdigest()[:12]


def _is_whole(path: Path) -> bool:
    try:
        TensorFile(path).close()
    except HeptiError:
        return False
    return True


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
