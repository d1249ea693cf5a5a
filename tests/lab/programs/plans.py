"""All ranks run several plans of one model in turn, in one program; rank 0 prints the seconds of every request as JSON.

plans.py MODEL.h5 PLANS.json ROWS TURNS    PLANS.json: {name: plan file}; out: {name: [seconds]}
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hepti_mpi.__main__ import limit_threads
from hepti_mpi.comm.group import world
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import block_kernels, load, rank_layers
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels import backends, embeddings
from solver.base import clock
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan
from weights.file.store import WeightsFile

WARM, TIMED = 1, 2  # requests of a plan in a turn

limit_threads()
group, backend = world(), backends.backend("onnxruntime")
tables = json.loads(Path(sys.argv[2]).read_text())
plans = {name: plan_from_json(json.dumps(table), Plan) for name, table in tables.items()}
rows, turns = int(sys.argv[3]), int(sys.argv[4])
batch, ids = Batch.of_lengths([rows]), np.random.default_rng(0).integers(1000, 20000, rows)

with WeightsFile(Path(sys.argv[1])) as file:
    # Kernels that several plans have in common are there once.
    make = partial(block_kernels, backend.graph)
    tensors, held = load(WeightsSource(group, file), file.spec, list(plans.values()), make)
stacks = {
    name: Stack(file.spec, plan, rank_layers(file.spec, plan, group.rank, held), group, backend)
    for name, plan in plans.items()
}

seconds = {name: [] for name in stacks}
for _ in range(turns):
    for name, stack in stacks.items():
        for number in range(WARM + TIMED):
            group.on_all(lambda: None)
            began = clock.now()
            x = embeddings.embed(file.spec, tensors, ids) if group.rank == 0 else None
            hidden = stack.run(batch, x, count=True)
            if group.rank == 0:
                embeddings.last_hidden(file.spec, tensors, hidden)
                seconds[name] += [clock.now() - began] * (number >= WARM)
if group.rank == 0:
    print(json.dumps(seconds), flush=True)
