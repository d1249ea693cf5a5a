"""Who sends to whom in a replica."""

from hepti_mpi.engine.replica import ReplicaPath
from tests.kit.encoders import FIVE as SPEC
from tests.kit.encoders import one_device_plan


def test_a_rank_sends_to_the_stage_behind_its_own_and_rank_0_to_the_first_too():
    plan = one_device_plan(SPEC, [(1, 0, 2), (0, 2, 3), (2, 3, 5)], 4)
    path = ReplicaPath(plan, plan.stages)

    assert [path.receivers(rank) for rank in range(4)] == [{1, 2}, {0}, {0}, set()]
