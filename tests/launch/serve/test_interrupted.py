"""A signal that comes while the service is being made is heeded as one that comes later: what was begun is ended."""

import asyncio
import signal
import socket

from launch.serve.command import _until_told


class Begun:
    """A supervisor that tells whether it was begun and ended."""

    def __init__(self):
        self.changed = asyncio.Condition()
        self.told = []

    def state(self):
        return {"models": [{"name": "it", "state": "loading", "reason": None}], "events": []}

    async def run(self):
        self.told.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            self.told.append("ended")


def test_ctrl_c_in_the_first_moment_ends_what_was_begun():
    made = []

    def make():
        made.append(Begun())
        signal.raise_signal(signal.SIGINT)
        return made[0], lambda *_: None

    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = asyncio.run(_until_told(make, listener))

    assert told == signal.SIGINT
    assert made[0].told == ["begun", "ended"]
