"""All ranks run several plans of one model in turn, in one program; rank 0 prints the seconds of every request as JSON.

plans.py MODEL.h5 PLANS.json TURNS ROWS [TOKENS]    PLANS.json: {name: plan file}; out: {name: [seconds]}

ROWS are an encoder's, or a prompt's, whose answer has so many TOKENS; a network's images have their size.
"""

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hepti_mpi.__main__ import limit_threads
from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group, world
from hepti_mpi.comm.wires import coding
from hepti_mpi.decoding.generation import Generation
from hepti_mpi.decoding.ranks import DecoderShare, Ranks
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import block_kernels, load, rank_layers
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.engine.network import NetworkShare
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels import backends, embeddings
from hepti_mpi.program.share import Share
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.prompts import Prompt, Wishes
from hepti_mpi.requests.sampling import Sampling
from solver.base import clock
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan
from solver.plan.segments import SegmentPlan
from solver.schedule.decoders.passes import DecoderPasses
from weights.decoders.file import DecoderFile
from weights.file.networks import NetworkFile
from weights.file.store import LANGUAGE_MODEL, NETWORK, WeightsFile, stored_kind

WARM, TIMED = 1, 2  # requests of a plan in a turn
BACKEND = "onnxruntime"

Runs = Mapping[str, Callable[[], object]]


def encoder_runs(path: Path, tables: Mapping[str, str], group: Group, rows: int) -> Runs:
    """Return what computes a request by every plan; all ranks call it."""
    plans = {name: plan_from_json(table, Plan) for name, table in tables.items()}
    backend = backends.backend(BACKEND)
    batch, ids = Batch.of_lengths([rows]), np.random.default_rng(0).integers(1000, 20000, rows)
    with WeightsFile(path) as file:
        # Kernels that several plans have in common are there once.
        make = partial(block_kernels, backend.graph)
        tensors, held = load(WeightsSource(group, file), file.spec, list(plans.values()), make)

    def run(stack: Stack) -> None:
        x = embeddings.embed(file.spec, tensors, ids) if group.rank == 0 else None
        hidden = stack.run(batch, x, count=True)
        if group.rank == 0:
            embeddings.last_hidden(file.spec, tensors, hidden)

    layers = {name: rank_layers(file.spec, plan, group.rank, held) for name, plan in plans.items()}
    return {name: partial(run, Stack(file.spec, plan, layers[name], group, backend)) for name, plan in plans.items()}


def network_runs(path: Path, tables: Mapping[str, str], group: Group) -> Runs:
    """Return what computes an image by every plan."""
    shares: dict[str, NetworkShare] = {}
    with NetworkFile(path) as file:
        net, source = file.net, WeightsSource(group, file)
        make = backends.graph_maker(BACKEND, net.nodes, group)
        for name, table in tables.items():
            shares[name] = NetworkShare(net, plan_from_json(table, SegmentPlan, net), group, make, [*shares.values()])
            source.complete(shares[name].lacking(source.type_of))
    if group.rank == 0:
        draw = np.random.default_rng(0)
        for share in shares.values():
            share.image[...] = draw.standard_normal(share.image.shape, np.float32)
    return {name: share.run for name, share in shares.items()}


def decoder_runs(path: Path, tables: Mapping[str, str], group: Group, prompt: int, tokens: int) -> Runs:
    """Return what answers a prompt by every plan."""
    direct, runs, numbers = Direct(group), {}, count()
    share: DecoderShare | None = None
    file = DecoderFile(path)  # stays open: rank 0 reads rows of words
    model, source = file.model, WeightsSource(group, file)

    def answer(ranks: Ranks) -> None:
        if group.rank:
            ranks.follow()
            return
        wishes = Wishes(Ending(tokens, (), ()), Sampling(0.0, 1.0, 0, None))
        ids = (next(numbers) % model.vocab, *np.random.default_rng(0).integers(model.vocab, size=prompt - 1).tolist())
        asked = [Prompt(0, ids)]  # none begins as another did: nothing of it is in a cache
        for _ in Generation(model, ranks, None, wishes, speculates=False).answer(asked):
            pass
        ranks.finish()

    for name, table in tables.items():
        plan = plan_from_json(table, DecoderPlan, model)
        share = Share(DecoderPasses(model, plan), group.rank, share, backend=BACKEND)
        source.complete(share.lacking())
        wire = coding(plan.wire, backends.backend(BACKEND).cast)
        ranks = Ranks(share, group, direct, wire, source, None if group.rank else file)
        runs[name] = partial(answer, ranks)
    return runs


limit_threads()
everyone = world()
model, plans, turns, *sizes = sys.argv[1:]
files = {name: json.dumps(table) for name, table in json.loads(Path(plans).read_text()).items()}
kinds = {NETWORK: network_runs, LANGUAGE_MODEL: decoder_runs}
requests = kinds.get(stored_kind(Path(model)), encoder_runs)(Path(model), files, everyone, *map(int, sizes))
seconds: dict[str, list[float]] = {name: [] for name in requests}
for _ in range(int(turns)):
    for name, request in requests.items():
        for number in range(WARM + TIMED):
            everyone.on_all(lambda: None)
            began = clock.now()
            request()
            if everyone.rank == 0:
                seconds[name] += [clock.now() - began] * (number >= WARM)
everyone.finish_sending()
if everyone.rank == 0:
    print(json.dumps(seconds), flush=True)
