"""The tables of fields as docs/http.md shows them."""

import json
from itertools import groupby

from launch.api.rules import Fate
from launch.api.tables import CHAT, CLASSIFICATION, COMPLETION, EMBEDDING, GENERATING, PART, POOLED, RERANK, SCORE

SHOWN = {
    "Of chats and completions": (GENERATING, {}),
    "Of chats alone": (CHAT, GENERATING),
    "Of a message's parts": (PART, {}),
    "Of completions alone": (COMPLETION, GENERATING),
    "Of embeddings, classifications, rerank and score": (POOLED, {}),
    "Of embeddings alone": (EMBEDDING, POOLED),
    "Of classifications alone": (CLASSIFICATION, POOLED),
    "Of rerank alone": (RERANK, POOLED),
    "Of score alone": (SCORE, POOLED),
}
ORDER = (Fate.HONOURED, Fate.HARMLESS, Fate.REFUSED)


def flat(table, path=""):
    """Yield the fields of a table, and of objects in it, by the path to them."""
    for name, rule in table.items():
        yield f"{path}{name}", rule
        if rule.inner is not None:
            yield from flat(rule.inner, f"{path}{name}.")


def taken(values):
    """Return values as JSON writes them."""
    return " or ".join(f"`{json.dumps(value)}`" for value in values)


def said(rule):
    if rule.fate is Fate.HONOURED:
        return "honoured"
    if rule.fate is Fate.HARMLESS:
        return f"changes no answer: {rule.why}"
    return f"refused{f', except {taken(rule.taken)}' if rule.taken else ''}: {rule.why}"


def markdown():
    """Return all tables, fields of one fate in one row."""
    lines = []
    for title, (table, known) in SHOWN.items():
        before = dict(flat(known))
        rows = [(ORDER.index(rule.fate), said(rule), name) for name, rule in flat(table) if name not in before]
        lines += ["", f"{title}:", "", "| field | what becomes of it |", "|---|---|"]
        places = {words: place for place, (_, words, _) in reversed([*enumerate(rows)])}
        rows.sort(key=lambda row: (row[0], places[row[1]]))
        for words, group in groupby(rows, key=lambda row: row[1]):
            lines.append(f"| {', '.join(f'`{name}`' for _, _, name in group)} | {words} |")
    return "\n".join(lines).strip()
