"""Texts that people read, kept as they are: one file a test module, `NAME.kept.txt` beside it.

A test asserts what happens; how it is worded is kept here, so that a changed word is one difference to read.
After a change that is meant, `HEPTI_WRITE_TABLES=1 pytest …` writes what there is now.
"""

import os
import re
from pathlib import Path

MARK = "=== "


def read(file: Path):
    """Return the texts of a file by their names."""
    if not file.exists():
        return {}
    parts = re.split(rf"^{MARK}(.*)\n", file.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (text.strip("\n") for text in parts[1::2]), strict=True))


def check(file: Path, name, shown, *, writes=True):
    """Assert that a text is as it is kept under its name; of several processes only one writes what there is now."""
    if os.environ.get("HEPTI_WRITE_TABLES") and not writes:
        return
    kept = read(file)
    if os.environ.get("HEPTI_WRITE_TABLES"):
        kept[name] = shown
        file.write_text("".join(f"{MARK}{title}\n{kept[title]}\n\n" for title in sorted(kept)))
    assert shown == kept.get(name), f"{name} in {file}"


class Kept:
    """What one test says: its texts are named after the test, in their order.

    Folders of the test's own, and those that tests share, are written as TMP: their names differ from run to run.
    """

    def __init__(self, item, folder, *, writes=True):
        self._file = item.path.with_suffix(".kept.txt")
        self._name = item.name
        self._folder = str(folder)
        self._writes = writes
        self._count = 0

    def __call__(self, text):
        """Assert that a text, or what an error says, is as it is kept."""
        self._count += 1
        name = self._name if self._count == 1 else f"{self._name} ({self._count})"
        shared = re.escape(str(Path(self._folder).parent)) + r"/[^/\s:]+"
        masked = re.sub(shared, "TMP", str(text).replace(self._folder, "TMP"))
        lines = masked.replace(Path(self._folder).name, "TMP").splitlines()  # what is named after its folder, too
        check(self._file, name, "\n".join(line.rstrip() for line in lines).strip("\n"), writes=self._writes)
