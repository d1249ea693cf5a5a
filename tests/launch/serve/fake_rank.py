"""Rank 0 as a service talks to it, and other ranks that only sit there: the double of `python -m hepti_mpi`.

A request's answer is its prompt's tokens counted on, one a FAKE_TOKEN_S; the text of token n is "n ". `profile`
measures devices fake-0, fake-1, and so on. What can go wrong:

    FAKE_REFUSES   a file: what it says is said, and the exit code is 2; so it is for a model called refused
    FAKE_DEAF_S    seconds after which nothing more is said
    FAKE_REFUSES_PLAN    a plan that is given does not fit
    FAKE_NO_RESERVE      ranks in reserve are never ready
    FAKE_BROKEN    a board on which ranks fail when they are loaded
"""

import json
import os
import select
import sys
import time
import tomllib
from pathlib import Path

TOKEN_S = float(os.environ.get("FAKE_TOKEN_S", "0.02"))
LOAD_S = float(os.environ.get("FAKE_LOAD_S", "0.1"))
DEAF_S = float(os.environ.get("FAKE_DEAF_S", "inf"))
DEVICE = '[[device]]\nname = "fake-{}"\ngflops = 10.0\nmemory_gib = 1.0\n'


class Rank0:
    def __init__(self, cluster, plan):
        devices = [device["name"] for device in tomllib.loads(Path(cluster).read_text())["device"]]
        self.plan = {"devices": devices} if plan is None else json.loads(Path(plan).read_text()) | {"given": True}
        self.open = {}
        self.answered = self.made = 0
        self.left = b""

    def run(self):
        end = time.monotonic() + DEAF_S
        while True:
            if time.monotonic() > end:
                time.sleep(3600)
            wait_s = TOKEN_S if self.open else None
            ready, _, _ = select.select([0], [], [], wait_s)
            if ready:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, self.left = (self.left + data).split(b"\n")
                for line in lines:
                    self.take(json.loads(line))
            for name in list(self.open):
                self.step(name)

    def take(self, line):
        if "status" in line:
            self.say(
                status=line["status"], model="fake", plan=self.plan, requests=self.answered,
                tokens=self.made, ranks=[], replans=[],
            )  # fmt: skip
        elif "cancel" in line:
            if self.open.pop(line["cancel"], None) is not None:
                self.say(id=line["cancel"], finish_reason="cancelled")
        else:
            self.open[line["id"]] = {**line, "new": list(line.get("said", ()))}

    def step(self, name):
        line = self.open[name]
        new = line["new"]
        new.append(line["tokens"][-1] + len(new) + 1)
        self.made += 1
        if line.get("stream"):
            self.say(id=name, token=new[-1], text=f"{new[-1]} ")
        if len(new) >= line["max_tokens"]:
            del self.open[name]
            self.answered += 1
            text = "".join(f"{token} " for token in new)
            self.say(
                id=name, text=text, new_tokens=new, finish_reason="length", seconds=1.0, first_s=0.1,
                tokens_per_s=1.0, prompt_tokens=len(line["tokens"]), known=0,
            )  # fmt: skip

    def say(self, **line):
        print(json.dumps(line), flush=True)


def main(words):
    rank = int(os.environ["PMIX_RANK"])
    if words == ["reserve"]:
        if os.environ["FAKE_HOST"] == os.environ.get("FAKE_BROKEN"):
            sys.exit(1)
        if rank or "FAKE_NO_RESERVE" in os.environ:
            time.sleep(3600)
        print(json.dumps({"reserve": int(os.environ["FAKE_RANKS"])}), flush=True)
        words = json.loads(sys.stdin.buffer.raw.readline())["run"]
    if words[0] == "profile":
        if rank == 0:
            assert "FAKE_REFUSES_PROFILE" not in os.environ
            devices = "".join(DEVICE.format(number) for number in range(int(os.environ["FAKE_RANKS"])))
            text = f'format = "hepti-cluster/1"\n{devices}[network]\nbandwidth_mbps = 940\n'
            Path(words[words.index("--out") + 1]).write_text(text)
        return
    model = Path(words[words.index("--model") + 1])
    refused = Path(os.environ.get("FAKE_REFUSES", "none"))
    too_large = "--plan" in words and "FAKE_REFUSES_PLAN" in os.environ
    if "refused" in model.name or refused.exists() or too_large:
        if rank == 0:
            why = refused.read_text() if refused.exists() else "no plan fits: 5 bytes are missing"
            print(f"python -m hepti_mpi: {why}", file=sys.stderr, flush=True)
            sys.exit(2)
        time.sleep(60)
    if os.environ["FAKE_HOST"] == os.environ.get("FAKE_BROKEN"):
        sys.exit(1)
    time.sleep(LOAD_S)
    if rank:
        time.sleep(3600)
    plan = words[words.index("--plan") + 1] if "--plan" in words else None
    Rank0(words[words.index("--cluster") + 1], plan).run()


if __name__ == "__main__":
    main(sys.argv[1:])
