"""Names of models on a hub, `org/name`, where a path is asked for: Hepti downloads nothing, and says what does."""

from __future__ import annotations

import re
from pathlib import Path

from solver.base.errors import HeptiError

# How a person who has no weights file comes by one.
MAKE_ONE = (
    "make one with hepti convert, of a checkpoint (hf download NAME --local-dir DIR gets one), or "
    "python -m weights synthesize, of random numbers"
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
