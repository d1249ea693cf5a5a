"""`python -m weights.file.facts FILE`: which weights file this is, as JSON, also where no tables can be printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from solver.base.errors import HeptiError
from weights.file.store import TensorFile


def main(path: Path) -> int:
    """Print the fingerprint, the kind, and the bytes that it takes in memory; return the exit code."""
    if not path.exists():
        print(json.dumps({"absent": True}))
        return 0
    try:
        with TensorFile(path) as file:
            held = path.stat().st_size * (2 if file.dtype == "float16" else 1)  # which are widened as they are read
            print(json.dumps({"fingerprint": file.fingerprint, "kind": file.kind, "bytes": held}))
    except HeptiError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
