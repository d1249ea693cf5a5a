"""Refusals of the service as a table: request, status, code, field and message. One runner.

A table is a text file: a line `$ METHOD path body`, below it what comes back. A row is added as its `$ …` line;
`HEPTI_WRITE_TABLES=1 pytest …` writes the rest, to be read, and drops rows that are answered now. What holds for every
row is checked here and stands in no table: a status from 400 on, and an error in OpenAI's shape, of one line.
"""

import os
from pathlib import Path

import httpx

PROMPT = "$ "


def check(table: Path, url):
    """Send every request of a table to a service, and assert that all answers are those that are kept."""
    rows = [line.removeprefix(PROMPT) for line in table.read_text().splitlines() if line.startswith(PROMPT)]
    with httpx.Client(base_url=url, timeout=10) as client:
        shown = "\n".join(filter(None, (_row(client, row) for row in rows)))
    if os.environ.get("HEPTI_WRITE_TABLES"):
        table.write_text(shown)
    assert shown == table.read_text()


def said(answer):
    """Return what an answer says that refuses: status, kind, field and message, in one line."""
    error = answer.json()["error"]
    assert answer.status_code >= 400, answer
    assert error["message"], answer
    assert "\n" not in error["message"], error
    where = f" {error['param']}" if error.get("param") else ""
    return f"{answer.status_code} {error['code'] or error['type']}{where}: {error['message']}"


def _row(client, row):
    method, path, *body = row.split(" ", 2)
    answer = client.request(method, path, content=body[0] if body else None)
    if answer.status_code < 400 and os.environ.get("HEPTI_WRITE_TABLES"):
        return ""  # refused no more: its row goes
    return f"{PROMPT}{row}\n{said(answer)}\n"
