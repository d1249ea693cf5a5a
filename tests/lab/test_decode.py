"""`bench compare` with programs in the place of its peers: who is started where, over the lab's own network."""

import json
import sys

import numpy as np
import pytest

from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from tests.launch.bench.test_decode import RECORDED
from weights.decoders.file import DecoderWriter

# Workers answer whoever connects with their host's name; the leader asks all of them.
DLLAMA = """#!PYTHON
import socket, sys
from itertools import pairwise
options = dict(pairwise(sys.argv))
if sys.argv[1] == "worker":
    server = socket.create_server((options["--host"], int(options["--port"])))
    while True:
        server.accept()[0].sendall(socket.gethostname().encode())
names = [socket.gethostname()]
for address in sys.argv[sys.argv.index("--workers") + 1:] if "--workers" in sys.argv else ():
    with socket.create_connection(address.split(":")) as worker:
        names.append(worker.recv(100).decode())
with open(ASKED, "a") as file:
    print(*names, options["--net-turbo"], file=file)
print(RECORDED)
"""


@pytest.fixture
def llama(tmp_path):
    """Return a language model that peers can read."""
    rope = Rope(frequencies=(1.0, 0.1, 0.01, 0.001))
    attention = Attention(heads=4, kv_heads=4, head_dim=8, rope=rope)
    layer = attention, Mlp(ffn=32)
    model = Decoder(name="small", hidden=32, vocab=64, positions=128, layers=(layer,), tied=True)
    with DecoderWriter(tmp_path / "small.h5", model, "a test", "int4") as weights:
        for name, weight in decoder_tensors(model).items():
            weights.write(name, 0, np.ones(weight.shape, np.float32))
    return tmp_path / "small.h5"


def test_dllama_leads_on_the_first_host_and_works_on_the_others(usual, llama, tmp_path):
    program = tmp_path / "dllama"
    facts = {"PYTHON": sys.executable, "ASKED": repr(str(tmp_path / "asked")), "RECORDED": repr(RECORDED)}
    text = DLLAMA
    for word, value in facts.items():
        text = text.replace(word, value)
    program.write_text(text)
    program.chmod(0o755)

    done = usual.launch(
        "bench", "compare", "--cluster", usual.name, "--model", llama, "--systems", "none", "--boards", "1,2,3",
        "--runs", 1, "--peer", f"dllama={program}", "--json", timeout=200,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (tmp_path / "asked").read_text().splitlines() == ["pi-0 0", "pi-0 pi-1 1", "pi-0 pi-1 0"]
    assert [(row["mode"], row["devices"]) for row in report["results"]] == [("", 1), ("spins", 2), ("blocks", 2)]
    assert [row["devices"] for row in report["absent"]] == [3]
    assert json.loads(usual.lab("status", "--json"))["hosts"][1]["processes"] == 0
