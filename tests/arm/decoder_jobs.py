"""`python -m tests.arm.decoder_jobs JOBS.json LOGITS.npz`: logits of a text by many models, in ranks that start once.

JOBS.json has `tokens`, and by name the weights file and the plan file of every job; its logits [tokens, V] go to
LOGITS.npz.
"""

import json
import sys
from pathlib import Path

from hepti_mpi.__main__ import limit_threads

limit_threads()

import numpy as np  # noqa: E402

from hepti_mpi.comm.direct import Direct  # noqa: E402
from hepti_mpi.comm.group import world  # noqa: E402
from hepti_mpi.comm.wires import EXACT  # noqa: E402
from hepti_mpi.decoding.ranks import Ranks  # noqa: E402
from hepti_mpi.engine.load import WeightsSource  # noqa: E402
from hepti_mpi.program.share import Share  # noqa: E402
from solver.base.spans import Span  # noqa: E402
from solver.plan.decoder_plan import DecoderPlan  # noqa: E402
from solver.plan.file import read_plan  # noqa: E402
from solver.schedule.decoders.passes import DecoderPasses  # noqa: E402
from weights.decoders.file import DecoderFile  # noqa: E402

CHUNKS = (Span(0, 14), Span(14, 15), Span(15, 20))  # a prefill, a token, what a guess is checked with


def logits(ranks, model, tokens):
    """Return all logits: candidates are the whole vocabulary."""
    found = np.empty((len(tokens), model.vocab), np.float32)
    for rows in CHUNKS:
        asked = {"chosen": rows.size, "count": model.vocab, "scales": rows.start == 0}
        best = ranks.compute(0, np.array([tokens[rows.slice]]), [rows.start], **asked)
        np.put_along_axis(found[rows.slice], best.ids, best.logits.astype(np.float32), 1)
    return found


def main(jobs, out):
    group = world()
    direct = Direct(group)
    table = json.loads(jobs.read_text())
    found = {}
    for name, (path, plan) in table["jobs"].items():
        with DecoderFile(Path(path)) as weights:
            model = weights.model
            share = Share(DecoderPasses(model, read_plan(Path(plan), DecoderPlan, model)), group.rank)
            WeightsSource(group, weights).complete(share.lacking())
            ranks = Ranks(share, group, direct, EXACT, reads=weights)
            if group.rank:
                ranks.follow()
            else:
                found[name] = logits(ranks, model, table["tokens"])
                ranks.finish()
    direct.close()
    if not group.rank:
        np.savez(out, **found)


main(*map(Path, sys.argv[1:]))
