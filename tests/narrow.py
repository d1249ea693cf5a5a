"""Tables as they are in 80 columns, kept as expected texts: one file a room, `NAME.txt` beside the test.

After a change that is meant, `HEPTI_WRITE_TABLES=1 pytest …` writes what there is now: read the difference.
"""

import os
import re
from pathlib import Path

WIDTH = 80
MARK = "=== "


def check(file, name, text, *, figures=True):
    """Assert that a table is as it is kept under its name, and no wider than 80 columns.

    Without `figures` digits do not count: what a planner predicts may change in the last one.
    """
    shown = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    if not figures:
        # Not those of names: pi-1, resnet50.
        shown = re.sub(r"(?<![\w/.-])\d[\d.]*", lambda found: re.sub(r"\d", "0", found[0]), shown)
    assert max(map(len, shown.splitlines())) <= WIDTH
    kept = read(file)
    if os.environ.get("HEPTI_WRITE_TABLES"):
        kept[name] = shown
        file.write_text("".join(f"{MARK}{title}\n{kept[title]}\n\n" for title in sorted(kept)))
    assert shown == kept.get(name), f"{name} in {file}"


def read(file: Path):
    if not file.exists():
        return {}
    parts = re.split(rf"^{MARK}(.*)\n", file.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (text.strip("\n") for text in parts[1::2]), strict=True))
