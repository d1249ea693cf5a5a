"""Embed the texts of a folder, and find those that are nearest to a question.

python examples/search_folder.py notes/ "how do I fix a flat tyre?" --model minilm.h5 --hosts pi-0 pi-1
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from launch import Cluster
from solver.base.errors import HeptiError


def main() -> int:
    """Let a model embed everything, and print the nearest texts; return 2 if one could not be read."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--model", required=True, help="a sentence encoder: a weights file, or a checkpoint directory")
    parser.add_argument("--hosts", nargs="+", default=[], help="who computes (default: this machine)")
    parser.add_argument("--np", type=int, help="how many ranks (default: one a host)")
    parser.add_argument("--best", type=int, default=3, help="how many texts to print (default: %(default)s)")
    options = parser.parse_args()

    paths = sorted(options.folder.rglob("*.txt"))
    if not paths:
        parser.error(f"there are no .txt files in {options.folder}")
    texts, cosines = {}, {}
    with Cluster(options.hosts, ranks=options.np).start(options.model) as model:
        question = unit(model.embed([options.question])[0])
        for path in paths:
            name = str(path.relative_to(options.folder))
            try:
                texts[name] = path.read_text("utf-8")
                cosines[name] = float(unit(model.embed([texts[name]])[0]) @ question)
            except (HeptiError, OSError, UnicodeDecodeError) as error:
                model.status()  # ranks that are gone answer for no other text either
                print(f"search_folder.py: {path}: {error}", file=sys.stderr)
    for name in sorted(cosines, key=cosines.__getitem__, reverse=True)[: options.best]:
        print(f"{cosines[name]:.3f}  {name}: {' '.join(texts[name].split())[:80]}")
    return 0 if len(cosines) == len(paths) else 2


def unit(vector: np.ndarray) -> np.ndarray:
    """Return a vector of length 1."""
    return vector / np.linalg.norm(vector)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeptiError as error:
        print(f"search_folder.py: {error}", file=sys.stderr)
        sys.exit(2)
