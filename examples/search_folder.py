"""Embed the texts of a folder, and find those that are nearest to a question.

python examples/search_folder.py notes/ "how do I mend a flat tyre?" --np 2
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

QUESTION = "the question"


def main() -> None:
    """Read the folder, let Hepti embed everything in one run, and print the nearest texts."""
    parser = argparse.ArgumentParser(description="Other options are those of hepti run: --model, --hostfile, --np, …")
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--best", type=int, default=3, help="how many texts to print (default: %(default)s)")
    options, others = parser.parse_known_args()

    texts = {str(path.relative_to(options.folder)): path.read_text() for path in sorted(options.folder.rglob("*.txt"))}
    if not texts:
        parser.error(f"there are no .txt files in {options.folder}")
    vectors = embedded({QUESTION: options.question, **texts}, others)
    question = vectors.pop(QUESTION)
    cosines = {name: question @ vector for name, vector in vectors.items()}
    for name in sorted(cosines, key=cosines.__getitem__, reverse=True)[: options.best]:
        print(f"{cosines[name]:.3f}  {name}: {' '.join(texts[name].split())[:80]}")


def embedded(texts: dict[str, str], options: list[str]) -> dict[str, np.ndarray]:
    """Return a vector of length 1 for every text, by name."""
    with tempfile.TemporaryDirectory() as folder:
        requests, answers = Path(folder) / "requests.jsonl", Path(folder) / "answers.jsonl"
        lines = [json.dumps({"id": name, "text": text}) for name, text in texts.items()]
        requests.write_text("\n".join(lines) + "\n")
        command = ["hepti", "run", "--input", str(requests), "--output", str(answers), *options]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode:  # it has said why
            sys.exit(done.returncode)
        found = map(json.loads, answers.read_text().splitlines())
        vectors = {answer["id"]: np.array(answer["embedding"]) for answer in found}
    return {name: vector / np.linalg.norm(vector) for name, vector in vectors.items()}


if __name__ == "__main__":
    main()
