"""The description of a language model: its tensors, its JSON, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.attention import FROM, Attention, Rope
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import HEAD, KEY
from solver.model.kinds.weight import PRECISIONS, Weight
from tests.kit import refused


def model(**facts):
    attention = Attention(heads=6, kv_heads=2, head_dim=24, rope=Rope(frequencies=(1.0, 0.1)), qk_norm=True)
    layers = (
        (attention, Mlp(ffn=96)),
        (Attention(heads=6, kv_heads=2, head_dim=24, window=8), Mlp(ffn=96)),
    )
    return Decoder(**{"name": "m", "hidden": 40, "vocab": 50, "positions": 64, "layers": layers * 2, **facts})


def test_a_description_is_read_as_it_was_written():
    before = model(eos=(1, 2), tied=True, post_norms=True, norm="layer")

    assert Decoder.from_json(before.to_json()) == before


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "convnet"}', model().to_json()[:-1], '{"kind": "decoder"}'])
def test_what_describes_no_decoder_is_refused(text):
    with pytest.raises(HeptiError, match="damaged"):
        Decoder.from_json(text)


def test_a_span_of_query_heads_needs_the_groups_it_touches():
    attention = model().layers[0][0]

    assert [attention.kv_span(Span(*ends)) for ends in ((0, 3), (2, 4), (5, 6), (4, 4))] == [
        Span(0, 1), Span(0, 2), Span(1, 2), Span(0, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("dealt", [(1,), (2, 3), (5, 1, 1), (7, 40)])
def test_tokens_that_are_shared_out_are_each_one_keepers_and_are_seen_by_all_rows_that_follow(dealt):
    """Of every so many tokens in turn; windows end what is seen of them, too."""
    for attention in model().layers[0][0], model().layers[1][0]:
        own = attention.among(dealt)
        keepers = np.repeat(range(len(dealt)), dealt)[np.arange(60) % sum(dealt)]
        for keeper in range(len(dealt)):
            assert [own.kept_by(keeper, tokens) for tokens in range(61)] == [
                int((keepers[:tokens] == keeper).sum()) for tokens in range(61)
            ]
        units = {HEAD: 6, KEY: 1}
        seen = [own.recalled({**units, FROM: keeper}, 5, 40) for keeper in range(len(dealt))]
        assert sum(seen) == attention.recalled(units, 5, 40)


def test_a_tied_model_has_no_matrix_for_its_head():
    assert set(decoder_tensors(model())) - set(decoder_tensors(model(tied=True))) == {"head/weight"}


def test_blocks_lie_along_the_summed_axis():
    int4 = PRECISIONS["int4"]

    assert Weight((50, 40), 1).stored(int4) == {"": (50, 2, 16), "/scale": (50, 2)}
    assert Weight((144, 40), 0).stored(int4) == {"": (5, 40, 16), "/scale": (5, 40)}
    assert Weight((40,)).stored(int4) == {"": (40,)}
    assert math.prod(Weight((50, 40), 1).stored(PRECISIONS["int8"])[""]) == 50 * 64


def test_what_fits_nothing_is_refused_by_name(kept):
    cases = [
        {"vocab": 0},
        {"layers": ()},
        {"layers": ((),)},
        {"norm": "batch"},
        *(
            {"layers": ((replace(model().layers[0][0], **changed), Mlp(ffn=96)),)}
            for changed in ({"causal": False}, {"buckets": 32}, {"kv_heads": 4})
        ),
    ]

    kept(refused.said(lambda facts: model(**facts), cases))
