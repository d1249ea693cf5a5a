"""What a rank says of itself at the end of a language model's job."""

from __future__ import annotations

import resource
from typing import Any

from hepti_mpi.comm.group import Group
from hepti_mpi.decoding.ranks import Ranks
from solver.model.decoder import Decoder
from solver.schedule.decoders.memory import rank_memory


def rank_report(model: Decoder, ranks: Ranks, group: Group) -> dict[str, Any]:
    """Return what a rank did in all answers."""
    plan, rank, traffic = ranks.share.passes.plan, group.rank, group.traffic
    memory = rank_memory(model, plan)[rank]
    return {
        "rank": rank,
        "device": plan.devices[rank],
        "backend": ranks.share.backend,
        "compute_s": ranks.compute_s,
        "kernel_s": traffic.kernel_s,
        "wait_s": traffic.wait_s,
        "sent_bytes": traffic.sent_bytes,
        "received_bytes": traffic.received_bytes,
        "weights_bytes": memory.weights,
        "cache_bytes": memory.cache,
        "memory_bytes": memory.total,
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
