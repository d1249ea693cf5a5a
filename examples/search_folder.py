"""Embed the texts of a folder, and find those that are nearest to a question.

python examples/search_folder.py notes/ "how do I mend a flat tyre?" --model minilm.h5 --hosts pi-0 pi-1
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from launch import Cluster
from solver.base.errors import HeptiError


def main() -> None:
    """Let a model embed everything, and print the nearest texts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--model", required=True, help="a sentence encoder: a weights file, or a checkpoint directory")
    parser.add_argument("--hosts", nargs="+", default=[], help="who computes (default: this machine)")
    parser.add_argument("--np", type=int, help="how many ranks (default: one a host)")
    parser.add_argument("--best", type=int, default=3, help="how many texts to print (default: %(default)s)")
    options = parser.parse_args()

    texts = {str(path.relative_to(options.folder)): path.read_text() for path in sorted(options.folder.rglob("*.txt"))}
    if not texts:
        parser.error(f"there are no .txt files in {options.folder}")
    with Cluster(options.hosts, ranks=options.np).start(options.model) as model:
        vectors = model.embed([options.question, *texts.values()])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = dict(zip(texts, vectors[1:] @ vectors[0], strict=True))
    for name in sorted(cosines, key=cosines.__getitem__, reverse=True)[: options.best]:
        print(f"{cosines[name]:.3f}  {name}: {' '.join(texts[name].split())[:80]}")


if __name__ == "__main__":
    try:
        main()
    except HeptiError as error:
        print(f"search_folder.py: {error}", file=sys.stderr)
        sys.exit(2)
