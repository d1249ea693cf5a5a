"""Models that do not fit: every system says which device lacks how much, and that is enough."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import MIB
from solver.model.named import named_model
from solver.model.precision import PRECISIONS
from solver.schedule.encoders.memory import does_not_fit
from solver.systems import THROUGHPUT, plan_that_fits, plans_for
from tests.kit.clusters import pis
from tests.sweeps import ALL, seeds

SPEC = named_model("bert-base", layers=6)
ROWS = 64


@pytest.mark.slow("make test-all plans for every group of four boards, too")
@pytest.mark.parametrize(
    ("seed", "system", "spec"),
    [
        (seed, system, spec)
        for spec in (SPEC, named_model("bert-base-decoupled", layers=6))
        for number, system in enumerate(plans_for(spec))
        for seed in (seeds(9, 9) if ALL else [1 if system == THROUGHPUT else number % 6])
    ],
)
def test_a_refusal_names_devices_with_both_numbers_and_its_mend_is_enough(seed, system, spec):
    """One to four boards; some have no room at all, together they may have more than the model needs.

    Of groups of four boards each is planned for, which takes ten seconds: in `make test` seeds of two and of three.
    """
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(5, 70, rng.integers(1, 5))
    memories = [int(rng.uniform(0.06, 0.27) * 2**30) for _ in speeds]
    cluster = pis(*speeds).holding([*PRECISIONS][seed % 2])
    devices = [replace(device, memory_bytes=size) for device, size in zip(cluster.devices, memories, strict=True)]
    cluster = replace(cluster, devices=tuple(devices))
    try:
        plan_that_fits(system, spec, cluster, ROWS)
        return
    except InfeasiblePlanError as error:
        message = str(error)

    total = int(re.search(r"^bert-base.* does not fit: (\d+) MiB short; it would with ", message)[1])
    more = re.findall(r"(\d+) MiB more on (pi-\d) \(has (\d+)\)", message)

    assert more
    assert sum(int(size) for size, _, _ in more) == total
    mended = {name: int(size) * MIB for size, name, _ in more}
    for _, name, has in more:
        assert int(has) == memories[cluster.names.index(name)] // MIB
    grown = [
        replace(device, memory_bytes=device.memory_bytes // MIB * MIB + mended.get(device.name, 0))
        if device.name in mended
        else device
        for device in devices
    ]
    plan_that_fits(system, spec, replace(cluster, devices=tuple(grown)), ROWS)


def test_of_many_devices_that_lack_memory_some_are_named(kept):
    cluster = pis(*[10.0] * 30, memory_gib=1)

    message = str(does_not_fit("it", cluster, np.full(30, 2.0 * MIB)))

    kept(message)
