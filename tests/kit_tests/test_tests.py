"""What holds for the tests: every promise has one that holds it, and how a message is worded is kept in a table."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOLDER = r"`(tests/[\w/]+\.py)(?:::\w+)?::([\w']+)`"
PROMISE = re.compile(rf"^- .+: {HOLDER}(, {HOLDER})*$")
SENTENCE = re.compile(r"(?:[A-Za-z]{2,}[,:;]? ){7}")  # a number and the words around it are fewer


def promises():
    """Return (page, line) of every promise that is written down."""
    pages = sorted((ROOT / "tests/promises").glob("*.md"))
    return [(page.name, line) for page in pages for line in page.read_text().splitlines() if line.startswith("- ")]


def test_every_promise_is_held_by_a_test_that_there_is():
    lost = [
        f"{page}: {line}"
        for page, line in promises()
        if not PROMISE.match(line) or not all(is_there(*holder) for holder in re.findall(HOLDER, line))
    ]

    assert promises()
    assert not lost


def is_there(path, name):
    text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    return re.search(rf"^\s*(async )?def {re.escape(name)}\(", text, flags=re.MULTILINE)


def test_no_test_asserts_a_whole_sentence_outside_the_kept_texts():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {text}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node, text in compared_texts(ast.parse(path.read_text()))
        if SENTENCE.search(text)
    ]

    assert not long


def compared_texts(tree):
    """Yield (node, text) of what assertions compare with, and of what `match=` looks for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            for side in (node.test.left, *node.test.comparators):
                if isinstance(side, ast.Constant | ast.JoinedStr):
                    yield node, _constant(side)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node, _constant(node.value)


def _constant(node):
    parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return "".join(part for part in parts if isinstance(part, str))
