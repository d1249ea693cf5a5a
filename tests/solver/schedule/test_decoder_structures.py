"""Plans of which the same ranks have some of everything: priced at once, and one's steps filled in for another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solver.base.spans import Partition, Span
from solver.model.kinds.part import FFN, HEAD
from solver.plan.decoder_plan import DecoderPlan, DecoderStage
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import answer_seconds, answers_seconds, setting_of
from solver.schedule.decoders.memory import most_memory, rank_memory
from solver.schedule.decoders.steps import (
    cuts_of,
    follow_crew,
    pass_parts,
    pass_rows,
    pass_schedule,
    planned,
    planned_alike,
    stages_of,
)
from solver.schedule.schedule import ComputeStep, ExchangeStep
from tests.kit.answers import boards
from tests.kit.decoders import small_model
from tests.sweeps import seeds

RANKS, ASKED = 4, TokenRequest(context=256, prompt=80, tokens=16)
MODEL = small_model(heads=12, kv_heads=3, d=8, ffn=64, vocab=90, windows=[0, 0, 16, 0])


def shared_out(random, total, taking):
    """Return a partition of which these ranks have something."""
    ends = np.sort(random.choice(np.arange(1, total), len(taking) - 1, replace=False)).tolist()
    counts = [0] * RANKS
    for rank, start, stop in zip(taking, [0, *ends], [*ends, total], strict=True):
        counts[rank] = stop - start
    return Partition.of_counts(counts)


def some(random, ranks):
    return sorted(random.choice(np.array(ranks), random.integers(1, len(ranks) + 1), replace=False).tolist())


def plans_of_one_structure(seed, many):
    """Return plans of one stage or two, in which any ranks have any shares."""
    random = np.random.default_rng(seed)
    edges = [0, 4] if random.random() < 0.5 else [0, 2, 4]
    crews = [[some(random, range(RANKS)), some(random, range(RANKS))] for _ in edges[1:]]
    words = some(random, sorted({*crews[-1][0], *crews[-1][1]}))
    two_steps_from, rows_from = int(random.integers(1, 9)), int(random.choice([16, 64]))
    rows = [
        tuple((np.isin(range(RANKS), heads) * random.integers(1, 9, RANKS)).tolist()) if random.random() < 0.5 else ()
        for heads, _ in crews
    ]
    facts = {"context": 256, "two_steps_from": two_steps_from, "rows_from": rows_from * any(rows)}
    for _ in range(many):
        stages = tuple(
            DecoderStage(
                Span(start, stop), {HEAD: shared_out(random, 12, heads), FFN: shared_out(random, 64, columns)}, own
            )
            for start, stop, (heads, columns), own in zip(edges, edges[1:], crews, rows, strict=False)
        )
        plan = DecoderPlan("x", tuple("abcd"), stages, shared_out(random, 90, words), **facts)
        plan.check(MODEL, RANKS)
        yield plan


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_plans_of_one_structure_cost_the_same_at_once_as_one_by_one(seed):
    plans = list(plans_of_one_structure(seed, 7))
    s = setting_of(MODEL, boards(1e9, 3e9, 2e9, 1e9, mbps=200.0), plans[0])

    alone = [answer_seconds(replace(s, kept={}), plan, ASKED) for plan in plans]

    assert len({plan.structure for plan in plans}) == 1
    assert answers_seconds(s, plans, ASKED) == pytest.approx(alone, rel=1e-12)
    assert [answer_seconds(s, plan, ASKED) for plan in plans] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_the_steps_of_a_plan_filled_in_for_another_are_its_own(seed):
    first, *others = plans_of_one_structure(seed, 4)
    for rows, chosen in ((1, 1), (40, 1), (40, 0), (5, 5)):
        cuts = pass_rows(MODEL, first, rows, chosen)
        parts = pass_parts(MODEL, stages_of(first, cuts), rows, cuts.asked, folded=True)
        kept = planned(parts, first, cuts)
        for plan in others if follow_crew(kept) else ():
            for filled, own in zip(planned_alike(kept, cuts_of([plan])), planned(parts, plan, cuts), strict=True):
                assert told(filled) == told(own)


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_exchanges_follow_from_who_takes_part_but_those_of_contexts(seed):
    plan = next(plans_of_one_structure(seed, 1))
    for rows in (1, 40, 80):
        steps = pass_schedule(MODEL, plan, pass_rows(MODEL, plan, rows, 1))
        contexts = any(isinstance(step, ExchangeStep) and step.name == "contexts" for step in steps)

        assert follow_crew(steps) != contexts


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_searches_count_no_less_memory_than_a_plan_needs(seed):
    """They do not schedule thousands of plans: what a pass of one takes is bounded by streams, and then exact."""
    plan = next(plans_of_one_structure(seed, 1))
    wire = (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8)[seed % 3]
    plan = replace(plan, wire=wire, stages=tuple(replace(stage, rows=()) for stage in plan.stages), rows_from=0)

    exact, most = rank_memory(MODEL, plan), most_memory(MODEL, plan)

    assert all(replace(one, work=0) == replace(other, work=0) for one, other in zip(exact, most, strict=True))
    assert all(one.work <= other.work for one, other in zip(exact, most, strict=True))


def told(step):
    """Return a step as plain numbers."""
    facts = [step.repeats, step.layers]
    if isinstance(step, ComputeStep):
        return [*facts, step.leaves, [(part.name, numbers(region)) for part, region in step.parts]]
    regions = [numbers(region) for region in (*step.have, step.want)]
    return [*facts, step.name, step.value, step.partial, regions]


def numbers(region):
    return {axis: spans.tolist() for axis, spans in region.items()}
