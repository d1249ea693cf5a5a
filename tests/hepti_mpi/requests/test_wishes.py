"""What cannot be wished of a prompt's own probabilities."""

import pytest

from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.prompts import Wishes
from hepti_mpi.requests.sampling import Sampling
from solver.base.errors import HeptiError


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"), ({"prompt_logprobs": 257}, "prompt_logprobs is 257"),
        ({"prompt_logprobs": 1, "grammar": object()}, "goes with no schema"),
    ],
)  # fmt: skip
def test_a_prompt_is_told_within_limits_and_without_a_schema(wishes, words):
    with pytest.raises(HeptiError, match=words):
        Wishes(Ending(3), Sampling(), **wishes)
