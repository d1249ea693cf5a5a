"""Requests of the models whose answers the oracle has."""

import numpy as np

from hepti_mpi.requests.inputs import Request
from tests.kit.encoders import expected


def requests_of(spec, lengths):
    """Return a batch of requests of these row counts."""
    contents, _ = expected(spec, tuple(lengths))
    return [Request("any", content, rows) for content, rows in zip(contents, lengths, strict=True)]


def hidden_states(engine, spec, batches):
    """Return the last hidden states [S, H] of batches of these row counts, all submitted at once."""
    answers = iter(list(engine.serve([[requests_of(spec, lengths) for lengths in batches]])))
    return [np.concatenate([next(answers).hidden for _ in lengths]) for lengths in batches]
