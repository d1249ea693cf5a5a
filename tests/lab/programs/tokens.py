"""What a token of a language model takes beside its kernels, and beside its messages alone; rank 0 prints it as JSON.

tokens.py MODEL.h5 PLAN.json TOKENS    ms a token: all of it; the kernels of who has most; its messages with nothing to
compute between them; and the same messages as bytes of no meaning over the same sockets, without the engine
"""

import json
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[3]))

from hepti_mpi.__main__ import limit_threads
from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import world
from hepti_mpi.comm.wires import coding
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.kernels import backends
from hepti_mpi.program.program import PassShape, Program
from hepti_mpi.program.share import Share
from solver.base import clock
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.file import plan_from_json
from solver.schedule.decoders.passes import DecoderPasses
from weights.decoders.file import DecoderFile

BACKEND, WARM, BEHIND = "onnxruntime", 10, 64


class MessagesAlone(Program):
    """A pass whose messages are all sent, and of which nothing is computed."""

    def _computing(self, step, called, comes):
        return ()


class Logged:
    """The connections of a rank; `log` has all exchanges in the order in which they run."""

    def __init__(self, direct):
        self._direct, self.log = direct, []

    def exchange(self, sends, receives):
        found = self._direct.exchange(sends, receives)
        return SimpleNamespace(run=lambda: (self.log.append(found), found.run()))


limit_threads()
group = world()
path, plan_file, tokens = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
direct = Direct(group)
with DecoderFile(path) as file:
    model, source = file.model, WeightsSource(group, file)
    plan = plan_from_json(plan_file.read_text(), DecoderPlan, model)
    share = Share(DecoderPasses(model, plan), group.rank, backend=BACKEND)
    source.complete(share.lacking())
wire, shape = coding(plan.wire, backends.backend(BACKEND).cast), PassShape(0, 1, 1, 1)
logged = Logged(direct)
whole, alone = (Program(share, shape, group, direct, wire), MessagesAlone(share, shape, group, logged, wire))
alone.run([BEHIND])
bare = list(logged.log)


def timed(run):
    """Return the median milliseconds in which all ranks have run something, once each."""
    found = []
    for _ in range(WARM + tokens):
        group.on_all(lambda: None)
        started = clock.now()
        run()
        found.append(clock.now() - started)
    return 1e3 * statistics.median(max(each) for each in zip(*group.on_all(lambda: found[WARM:]), strict=True))


before_s = group.traffic.kernel_s
token = timed(lambda: whole.run([BEHIND]))
kernels = 1e3 * (group.traffic.kernel_s - before_s) / (WARM + tokens)
told = {
    "token": token,
    "kernels": max(group.on_all(lambda: kernels)),
    "messages": timed(lambda: alone.run([BEHIND])),
    "bare": timed(lambda: [exchange.run() for exchange in bare]),
}
if group.rank == 0:
    print(json.dumps(told), flush=True)
