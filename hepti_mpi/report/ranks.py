"""What a rank says of itself at the end of a job."""

from __future__ import annotations

import resource
from typing import Any

from hepti_mpi.engine.stack import Meter
from solver.model.convnet import ConvNet
from solver.model.precision import PRECISIONS
from solver.model.spec import ModelSpec
from solver.plan.holdings import weights_bytes
from solver.plan.plan import Plan
from solver.plan.segments import SegmentPlan
from solver.schedule.networks.segment_steps import weights_of


def rank_report(spec: ModelSpec, plan: Plan, meter: Meter, rank: int, backend: str, precision: str) -> dict[str, Any]:
    """Return what this rank did in all requests that count, by which backend, in which precision."""
    held = weights_bytes(spec, plan, rank, PRECISIONS[precision])
    bits = {str(bits): count for bits, count in meter.batches_by_bits.items()}
    return _report(rank, plan.devices[rank], backend, meter, held) | {"batches_by_bits": bits}


def network_rank_report(net: ConvNet, plan: SegmentPlan, meter: Meter, rank: int, backend: str) -> dict[str, Any]:
    """Return what a rank did in all images that count, and with which backend."""
    return _report(rank, plan.devices[rank], backend, meter, weights_of(net, plan)[rank])


def _report(rank: int, device: str, backend: str, meter: Meter, held: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "device": device,
        "backend": backend,
        **meter.to_table(),
        "weights_bytes": held,
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
