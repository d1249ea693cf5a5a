"""Say what is in the pictures of a folder, by class, the surest first.

python examples/classify_pictures.py photos/ --model resnet50.h5 --hosts pi-0 pi-1
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from launch import Cluster
from solver.base.errors import HeptiError

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def main() -> int:
    """Let a network look at all pictures, and print the names of each class; return 2 if one could not be read."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True, help="a network that classifies: a weights file, or an .onnx")
    parser.add_argument("--hosts", nargs="+", default=[], help="who computes (default: this machine)")
    parser.add_argument("--np", type=int, help="how many ranks (default: one a host)")
    parser.add_argument("--least", type=float, default=0.0, help="leave out scores below this")
    options = parser.parse_args()

    pictures = sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in PICTURES)
    if not pictures:
        parser.error(f"there are no pictures ({', '.join(PICTURES)}) in {options.folder}")
    bad = 0
    classes = defaultdict(list)
    with Cluster(options.hosts, ranks=options.np).start(options.model) as model:
        for path in pictures:
            try:
                surest = model.classify(path)[0]
            except HeptiError as error:
                model.status()  # ranks that are gone answer for no other picture either
                print(f"classify_pictures.py: {path}: {error}", file=sys.stderr)
                bad += 1
                continue
            if surest.score >= options.least:
                classes[surest.label].append((surest.score, str(path.relative_to(options.folder))))
    for label, found in sorted(classes.items(), key=lambda one: max(one[1]), reverse=True):
        print(label)
        for score, name in sorted(found, reverse=True):
            print(f"  {score:.2f}  {name}")
    return 2 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeptiError as error:
        print(f"classify_pictures.py: {error}", file=sys.stderr)
        sys.exit(2)
