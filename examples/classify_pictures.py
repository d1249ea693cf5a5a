"""Say what is in the pictures of a folder, by class, the surest first.

python examples/classify_pictures.py photos/ --model resnet50.h5 --hostfile pis
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path


def main() -> None:
    """Let Hepti look at all pictures in one run, and print the names of each class."""
    parser = argparse.ArgumentParser(description="Other options are those of hepti run: --hostfile, --np, --cluster, …")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="a convolutional network that classifies")
    parser.add_argument("--least", type=float, default=0.0, help="leave out scores below this")
    options, others = parser.parse_known_args()

    classes = defaultdict(list)
    for answer in looked_at(options.folder, options.model, others):
        if answer["score"] >= options.least:
            classes[answer["label"]].append((answer["score"], answer["id"]))
    for label, pictures in sorted(classes.items(), key=lambda one: max(one[1]), reverse=True):
        print(label)
        for score, name in sorted(pictures, reverse=True):
            print(f"  {score:.2f}  {name}")


def looked_at(folder: Path, model: Path, options: list[str]) -> list[dict]:
    """Return the answer for every picture."""
    with tempfile.TemporaryDirectory() as temporary:
        answers = Path(temporary) / "answers.jsonl"
        command = ["hepti", "run", "--model", str(model), "--input", str(folder), "--output", str(answers), *options]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode:  # it has said why
            sys.exit(done.returncode)
        return [json.loads(line) for line in answers.read_text().splitlines()]


if __name__ == "__main__":
    main()
