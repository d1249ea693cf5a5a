"""What a language model's plan costs: against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Partition, Span
from solver.cluster.cluster import PROGRAM_BYTES
from solver.model.blocks import total_of
from solver.model.kinds.part import FFN
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, whole_on
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import (
    answer_seconds,
    chunks,
    first_seconds,
    pass_steps,
    predicted,
    price_pass,
    setting_of,
    token_seconds,
)
from solver.schedule.decoders.memory import check_memory, chunk_numbers, rank_memory, stored_bytes
from tests.kit import refused
from tests.kit.answers import boards
from tests.kit.decoders import shares, small_model

# Blocks of 32: every size divides.
MODEL = small_model(layers=2, heads=8, kv_heads=4, d=32, hidden=64, ffn=128, vocab=256)
CALL, SPEED, CACHED = 1e-6, 1e6, 1e-8


def plan(heads=(4, 4), columns=(64, 64), words=(128, 128), ranks=2, **facts):
    stage = DecoderStage(Span(0, 2), shares(heads, columns))
    names = tuple(f"pi-{rank}" for rank in range(ranks))
    facts = {"precision": "int4", "context": 128, **facts}
    return DecoderPlan("x", names, (stage,), Partition.of_counts(words), **facts)


def here(*bytes_per_s, plan, model=MODEL, **facts):
    facts = {"call_s": CALL, "cached_s": CACHED, "message_s": 0.0, "pass_s": 0.0, **facts}
    return setting_of(model, boards(*bytes_per_s, **facts), plan)


def int4(numbers, beside=4):
    """Return the bytes of numbers in blocks, each with so many beside its levels."""
    return numbers * (0.5 + beside / 32)


def attention_bytes(heads, kv, beside=4):
    return 4 * 64 + int4(2 * heads * 32 * 64 + 2 * kv * 32 * 64, beside)


def mlp_bytes(columns, beside=4):
    return 4 * 64 + int4(3 * columns * 64, beside)


def words_bytes(words, beside=4):
    return 4 * 64 + int4(words * 64, beside)


def test_a_token_on_one_device_is_its_layers_and_its_head():
    alone = whole_on(MODEL, ("pi-0",), 0, precision="int4", context=128)
    s = here(SPEED, plan=alone)
    attention = CALL + attention_bytes(8, 4) / SPEED + (20 + 1) * 8 * 32 * CACHED
    mlp = CALL + mlp_bytes(128) / SPEED
    head = CALL + words_bytes(256) / SPEED

    assert token_seconds(s, alone, 20) == pytest.approx(2 * (attention + mlp) + head)


def test_a_sum_is_the_slowest_device_and_the_wire():
    halves = plan(heads=(2, 6), columns=(32, 96), words=(0, 256))
    of_one = replace(halves, stages=(replace(halves.stages[0], layers=Span(0, 1)),))
    s = here(SPEED, 2 * SPEED, plan=of_one, mbps=8.0, model=replace(MODEL, layers=MODEL.layers[:1]))
    attention = max(
        CALL + attention_bytes(2, 1) / SPEED + 11 * 2 * 32 * CACHED,
        CALL + attention_bytes(6, 3) / (2 * SPEED) + 11 * 6 * 32 * CACHED,
    )
    step = pass_steps(s, of_one, 1, 10)[1]

    assert (step.repeats, step.layers, step.name) == (1, "0", "sum of attention")
    # A summand of 64 numbers at 1 MB/s, a latency, and what adding takes it.
    wire = 2e-4 + 64 * 4 / 1e6
    assert float(step.times.exchange.max()) == pytest.approx(wire)
    adding = float(step.times.end.max()) - attention - wire
    assert 0 < adding < 1e-3
    assert step.sent.tolist() == step.received.tolist() == [256, 256]


def test_layers_that_are_alike_are_one_step_repeated():
    """A rank that others wait for does not wait for them: it begins what follows before these do."""
    halves = plan(heads=(2, 6), columns=(32, 96), words=(0, 256))
    both = here(SPEED, 2 * SPEED, plan=halves, mbps=8.0)
    steps = pass_steps(both, halves, 1, 10)

    assert [(step.repeats, step.layers) for step in steps[1:3]] == [(2, "0-1"), (2, "0-1")]
    slowest = sum(step.repeats * float((step.times.compute + step.times.exchange).max()) for step in steps)
    assert token_seconds(both, halves, 10) < slowest


def test_a_message_costs_both_sides():
    halves = plan()
    cheap, dear = (token_seconds(here(SPEED, SPEED, plan=halves, message_s=cost), halves, 0) for cost in (0.0, 1e-3))

    # Four sums of two ranks, one sent and one received one after the other; tokens to rank 1, its candidates back.
    assert dear - cheap == pytest.approx((4 * 2 + 2 + 2) * 1e-3)


@pytest.mark.parametrize(("call_s", "share"), [(0.06, 1.0), (0.008, 0.5)])
def test_ranks_that_vary_wait_for_the_later_of_both_in_every_exchange(call_s, share):
    """With each of four sums, and rank 0 for the words in the end; less where steps are short."""
    halves, jitter_s = plan(words=(0, 256)), 1e-3
    facts = {"message_s": 0.0, "pass_s": 0.0, "mbps": 1e9, "latency_s": 1e-12, "cached_s": 0.0}
    # Calls take all the time of steps.
    steady = boards(1e12, 1e12, call_s=call_s, **facts)
    varying = replace(steady, devices=tuple(replace(device, jitter_s=jitter_s) for device in steady.devices))
    calm, late = (token_seconds(setting_of(MODEL, cluster, halves), halves, 10) for cluster in (steady, varying))

    # Two moments that are alike: by a jitter; rank 1 alone has words, and rank 0 has waited for long.
    assert late - calm == pytest.approx(4 * share * jitter_s, rel=1e-3)


def test_many_rows_go_in_two_steps_where_there_are_three_ranks():
    thirds = plan(heads=(4, 2, 2), columns=(64, 32, 32), words=(256, 0, 0), ranks=3)
    s = here(SPEED, SPEED, SPEED, plan=thirds, mbps=8.0)
    few, many = (list(pass_steps(s, thirds, rows, 0))[1] for rows in (6, 9))

    assert few.sent.tolist() == [6 * 2 * 256] * 3
    assert many.sent.tolist() == [9 * 2 * 256 * 2 / 3] * 3
    assert float(few.times.exchange.max()) == pytest.approx(2e-4 + 6 * 2 * 256 / 1e6)
    assert float(many.times.exchange.max()) == pytest.approx(2 * (2e-4 + 3 * 2 * 256 / 1e6), rel=0.05)


def test_who_has_no_heads_sends_none_and_needs_all():
    uneven = plan(heads=(8, 0), columns=(64, 64))
    attention, mlp = list(pass_steps(here(SPEED, SPEED, plan=uneven), uneven, 1, 0))[1:3]

    assert (attention.sent.tolist(), attention.received.tolist()) == ([256, 0], [0, 256])
    assert mlp.sent.tolist() == [256, 256]


def test_a_thin_wire_carries_fewer_bytes():
    thin = plan(wire=Wire.INT8)
    step = list(pass_steps(here(SPEED, SPEED, plan=thin), thin, 1, 0))[1]

    assert step.sent.tolist() == [64 + 2 * 4] * 2  # a scale for every 32 numbers


def chain_of_two(**facts):
    """Return the plan by which each rank has a layer, and the last one the head."""
    first, last = (
        DecoderStage(Span(number, number + 1), shares(*([n * (1 - number), n * number] for n in (8, 128))))
        for number in (0, 1)
    )
    chained = replace(plan(words=(0, 256), **facts), stages=(first, last))
    chained.check(MODEL, 2)
    return chained


def test_from_stage_to_stage_goes_the_stream():
    chained = chain_of_two()
    steps = list(pass_steps(here(SPEED, SPEED, plan=chained), chained, 1, 0))

    assert [step.name for step in steps] == [
        "tokens", "attention", "mlp", "stream", "attention", "mlp", "candidates",
    ]  # fmt: skip
    assert steps[3].sent.tolist() == [256, 0]
    assert not any(step.sent.any() for step in (steps[1], steps[2], steps[4], steps[5]))
    assert steps[6].sent[1] > 0


def test_a_prompt_goes_in_chunks_and_its_end_has_the_head():
    alone = whole_on(MODEL, ("pi-0",), 0, precision="int4", context=512)
    s = here(SPEED, plan=alone)
    (attention, mlp), head = MODEL.layers[0], CALL + words_bytes(256) / SPEED

    def bodies(chunks_of_prompt, rows_of_mlp):
        """Of the last layer's MLP only the row is computed whose word is asked for."""
        attending = sum(2 * s.kind_s(attention, 8, *chunk)[0] for chunk in chunks_of_prompt)
        return attending + sum(s.kind_s(mlp, 128, rows)[0] for rows in rows_of_mlp)

    assert list(chunks(300)) == [(256, 0), (44, 256)]
    assert first_seconds(s, alone, 300) == pytest.approx(bodies([(256, 0), (44, 256)], (256, 44, 1)) + head)
    assert first_seconds(s, alone, 256) == pytest.approx(bodies([(256, 0)], (256, 1)) + head)


def test_prompts_that_are_cut_by_rows_send_less_and_take_more_memory():
    """Contexts go to who has their rows, and rows to all: not summands. But everyone has all weights after them."""
    by_heads = plan(heads=(2, 2, 2, 2), columns=(32, 32, 32, 32), words=(256, 0, 0, 0), ranks=4)
    by_rows = replace(by_heads, rows_from=8, stages=(replace(by_heads.stages[0], rows=(1, 1, 1, 1)),))
    by_rows.check(MODEL, 4)
    s = here(*[SPEED] * 4, plan=by_heads, mbps=8.0)
    sent = [sum(step.repeats * step.sent for step in pass_steps(s, own, 64, 0, 0)[1:]) for own in (by_heads, by_rows)]

    # Each has 16 of 64 rows of 64 numbers. Of the first layer it sends three others contexts of two heads, and its
    # rows; or two sums in two steps. After the last layer's keys nothing is wanted.
    contexts, rows = 3 * 16 * 2 * 32 * 4, 3 * 16 * 64 * 4
    assert sent[1].tolist() == [contexts + rows] * 4
    assert sent[0].tolist() == [2 * 2 * rows] * 4
    assert first_seconds(s, by_rows, 64) < first_seconds(s, by_heads, 64)
    assert token_seconds(s, by_rows, 64) == token_seconds(s, by_heads, 64)
    more = [
        one.weights - other.weights
        for one, other in zip(*(rank_memory(MODEL, own) for own in (by_rows, by_heads)), strict=True)
    ]
    assert more == [2 * (int4(8 * 32 * 64, 8) + mlp_bytes(128, 8))] * 4


def test_prompts_whose_output_products_are_cut_by_rows_send_contexts_in_the_place_of_one_of_two_sums():
    """And who has rows holds that product whole."""
    by_heads = plan(heads=(2, 2, 2, 2), columns=(32, 32, 32, 32), words=(256, 0, 0, 0), ranks=4)
    stage = replace(by_heads.stages[0], rows=(1, 1, 1, 1), rows_end=True)
    by_rows = replace(by_heads, rows_from=8, stages=(stage,))
    by_rows.check(MODEL, 4)
    s = here(*[SPEED] * 4, plan=by_heads, mbps=8.0)

    sent = sum(step.repeats * step.sent for step in pass_steps(s, by_rows, 64, 0, 0)[1:])
    contexts, rows = 3 * 16 * 2 * 32 * 4, 3 * 16 * 64 * 4
    assert sent.tolist() == [contexts + rows + 2 * rows] * 4  # as of whole rows, and the MLP's sum in two steps
    assert token_seconds(s, by_rows, 64) == token_seconds(s, by_heads, 64)
    held = (rank_memory(MODEL, own) for own in (by_rows, by_heads))
    assert [one.weights - other.weights for one, other in zip(*held, strict=True)] == [2 * int4(8 * 32 * 64, 8)] * 4


def test_an_answer_is_its_prompt_and_its_tokens():
    asked = TokenRequest(prompt=10, tokens=7, context=128)
    s = here(SPEED, SPEED, plan=plan())

    assert answer_seconds(s, plan(), asked) == pytest.approx(
        first_seconds(s, plan(), 10) + 7 * token_seconds(s, plan(), 13)
    )


@pytest.mark.parametrize(("rows", "behind"), [(1, 0), (1, 3), (1, 50), (5, 0), (5, 2), (16, 9)])
def test_a_window_ends_what_a_row_sees(rows, behind):
    attention = replace(MODEL.layers[0][0], window=4)
    by_hand = np.mean([min(behind + row + 1, 4) for row in range(rows)])

    assert attention.seen(rows, behind) == pytest.approx(by_hand)
    assert MODEL.layers[0][0].seen(rows, behind) == pytest.approx(behind + (rows + 1) / 2)


def test_layers_that_differ_are_steps_of_their_own():
    windows = small_model(layers=4, heads=8, kv_heads=4, d=32, hidden=64, ffn=128, vocab=256, windows=[4, 4, 0, 4])
    alone = whole_on(windows, ("pi-0",), 0, precision="int4", context=128)
    s = setting_of(windows, boards(SPEED), alone)
    steps = [step for step in pass_steps(s, alone, 1, 99) if step.name == "attention"]

    assert [(step.layers, step.repeats) for step in steps] == [("0-1", 2), ("2", 1), ("3", 1)]
    assert float(steps[1].times.end.max()) > float(steps[2].times.end.max())


def test_memory_is_weights_cache_and_work():
    two = plan(heads=(2, 6), columns=(32, 96), words=(128, 128), sequences=3)
    one, other = rank_memory(MODEL, two)

    assert one.weights == 2 * (attention_bytes(2, 1, 8) + mlp_bytes(32, 8)) + words_bytes(128, 8)
    assert stored_bytes(MODEL, two, 0) == 2 * (attention_bytes(2, 1, 2) + mlp_bytes(32, 2)) + words_bytes(128, 2)
    assert one.cache == 2 * 2 * 1 * 32 * 4 * 128 * 3
    assert other.cache == 3 * one.cache
    assert one.embedding == 4 * 256 * 64
    assert other.embedding == 0
    assert PROGRAM_BYTES < one.work < PROGRAM_BYTES + 2**20
    assert one.total == one.weights + one.cache + one.embedding + one.work


def test_words_of_an_embedding_that_is_cut_are_weights():
    whole = plan(heads=(2, 6), columns=(32, 96), words=(128, 128))
    cut = replace(whole, embedding=Partition.of_counts([56, 200]))

    for rank, words in enumerate((56, 200)):
        before, after = rank_memory(MODEL, whole)[rank], rank_memory(MODEL, cut)[rank]
        assert after.weights - before.weights == words * (64 // 2 + 64 // 32 * 8)
        assert after.embedding == 0


def test_keys_and_values_of_a_group_that_is_cut_are_held_twice():
    cut = rank_memory(MODEL, plan(heads=(3, 5)))
    whole = rank_memory(MODEL, plan(heads=(4, 4)))

    assert [needs.cache for needs in cut] == [2 * 2 * kv * 32 * 4 * 128 for kv in (2, 3)]
    assert sum(needs.cache for needs in cut) == sum(needs.cache for needs in whole) * 5 / 4


def test_keys_that_are_shared_out_by_tokens_take_memory_where_they_are_kept():
    """Of every 9 tokens of 128 two, six and one, 14 times, and two more; and scores, and keys as they are seen."""
    three = plan(heads=(4, 4, 0), columns=(64, 0, 64), words=(128, 128, 0), ranks=3, sequences=2)
    shared = replace(three, stages=(replace(three.stages[0], keys=(2, 6, 1)),))

    needs, before = rank_memory(MODEL, shared), rank_memory(MODEL, three)
    values, values_before = chunk_numbers(MODEL, shared), chunk_numbers(MODEL, three)

    assert [own.cache for own in needs] == [2 * 2 * 4 * 32 * 4 * 2 * tokens for tokens in (30, 84, 14)]
    assert {type(own.total) for own in needs} == {int}  # plans and reports are JSON
    assert [own.weights for own in needs] == [own.weights for own in before]
    beside = [own.work - 4 * numbers for own, numbers in zip(needs, values, strict=True)]
    beside_before = [own.work - 4 * numbers for own, numbers in zip(before, values_before, strict=True)]
    seen = [4 * tokens * (3 * 32 * 8 + 2 * 4 * 32) for tokens in (30, 84, 14)]
    assert [more - less for less, more in zip(beside_before, beside, strict=True)] == seen


def test_who_has_keys_alone_needs_memory_for_them():
    """Neither heads nor columns nor words: it attends for others."""
    two = plan(heads=(8, 0), columns=(128, 0), words=(256, 0))
    needs = rank_memory(MODEL, replace(two, stages=(replace(two.stages[0], keys=(0, 1)),)))

    assert [own.cache for own in needs] == [0, 2 * 2 * 4 * 32 * 4 * 128]
    assert needs[1].weights == 0
    assert needs[1].work > PROGRAM_BYTES


def test_columns_of_a_result_are_weights_where_they_are():
    halves = plan(precision="float32")
    by_columns = replace(halves, stages=(replace(halves.stages[0], outputs={FFN: Partition.of_counts([64, 0])}),))

    one, other = ([own.weights for own in rank_memory(MODEL, each)] for each in (halves, by_columns))

    assert [more - less for less, more in zip(one, other, strict=True)] == [2 * 4 * 64 * 64, -2 * 4 * 64 * 64]


def test_columns_of_the_head_are_weights_where_they_are():
    halves = plan(precision="float32", words=(256, 0))
    by_hidden = replace(halves, hidden=Partition.of_counts([32, 32]))

    one, other = ([own.weights for own in rank_memory(MODEL, each)] for each in (halves, by_hidden))

    assert [more - less for less, more in zip(one, other, strict=True)] == [-4 * 256 * 32, 4 * (256 * 32 + 64)]


def test_an_int8_cache_takes_a_quarter():
    exact, thin = (rank_memory(MODEL, plan(cache=cache))[0].cache for cache in ("float32", "int8"))

    assert exact == 4 * thin


def test_who_takes_no_part_needs_nothing():
    third = plan(heads=(4, 0, 4), columns=(64, 0, 64), words=(256, 0, 0), ranks=3)

    assert rank_memory(MODEL, third)[1].total == 0


def test_memory_that_lacks_is_named_with_both_numbers(kept):
    cluster = boards(SPEED, SPEED, memory_bytes=(2**30, 2**20))

    kept(refused.said(check_memory, [(MODEL, cluster, plan())], InfeasiblePlanError))


def test_what_is_predicted_stands_in_the_plan():
    s = here(SPEED, SPEED, plan=plan())
    facts = predicted(s, plan(), rank_memory(MODEL, plan()), 10, 20).predicted

    assert facts.token_s == pytest.approx(token_seconds(s, plan(), 20))
    four = replace(plan(), sequences=4)
    assert predicted(s, four, rank_memory(MODEL, four), 10, 20).predicted.token_s == token_seconds(s, four, 20, 4)
    assert facts.first_s == pytest.approx(first_seconds(s, plan(), 10))
    assert facts.compute_s + facts.exchange_s == pytest.approx(facts.token_s)
    assert facts.memory_bytes == tuple(needs.total for needs in rank_memory(MODEL, plan()))
    price = price_pass(s, plan(), 1, 20)
    assert np.allclose(price.compute_s + price.exchange_s + price.idle_s, price.seconds)


def test_an_answer_to_several_sequences_has_their_prompts_and_passes_with_a_row_of_each():
    several = replace(plan(), sequences=3)
    s = here(SPEED, SPEED, plan=several)
    asked = TokenRequest(prompt=10, tokens=7, context=128, sequences=3)

    together = price_pass(s, several, 3, asked.behind, chosen=3).seconds
    assert together > token_seconds(s, several, asked.behind)
    assert answer_seconds(s, several, asked) == pytest.approx(3 * first_seconds(s, several, 10) + 7 * together)


def test_a_stage_computes_some_sequences_while_the_next_one_computes_those_before():
    """Of two sequences, and of four two by two: the second part waits for the last stage, which has the head."""
    chained = chain_of_two(sequences=4)
    s = here(SPEED, SPEED, plan=chained, mbps=1e9, latency_s=1e-12)
    attention = CALL + attention_bytes(8, 4) / SPEED + (20 + 1) * 8 * 32 * CACHED
    layer = attention + CALL + mlp_bytes(128) / SPEED
    last = layer + CALL + words_bytes(256) / SPEED

    assert token_seconds(s, chained, 20, 1) == pytest.approx(layer + last)
    assert token_seconds(s, chained, 20, 2) == pytest.approx(layer + 2 * last)
    blocks = (*MODEL.layers[0], MODEL.head_block)
    *layer_s, head_s = (s.kind_s(kind, total_of(kind, MODEL.stream), 2, 20)[0] for kind in blocks)
    assert token_seconds(s, chained, 20, 4) == pytest.approx(3 * sum(layer_s) + 2 * head_s)


def test_a_pass_that_checks_guesses_has_the_head_for_all_its_rows():
    alone = whole_on(MODEL, ("pi-0",), 0, precision="int4", context=128)
    s = here(SPEED, plan=alone)
    checked, one = (list(pass_steps(s, alone, 4, 20, chosen=chosen))[-1] for chosen in (4, 1))

    assert float(checked.times.end.max()) == pytest.approx(CALL + 1.5 * words_bytes(256) / SPEED)
    assert float(one.times.end.max()) == pytest.approx(CALL + words_bytes(256) / SPEED)
