"""`python -m weights.file.facts FILE`: which weights file this is, as JSON, also where no tables can be printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from solver.base.errors import HeptiError
from weights.file.store import TensorFile


def main(path: Path) -> int:
    """Print the fingerprint and the bytes; return the exit code."""
    try:
        with TensorFile(path) as file:
            print(json.dumps({"fingerprint": file.fingerprint, "bytes": path.stat().st_size}))
    except HeptiError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
