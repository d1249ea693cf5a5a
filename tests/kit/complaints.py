"""What a function says of wrong input, as lines to keep."""

import pytest

from solver.base.errors import HeptiError


def complaints(call, inputs):
    """Return a line for each input that `call` must refuse: the input, and what it says in one line."""
    return "\n".join(f"{given!r}: {complaint(call, given)}" for given in inputs)


def complaint(call, *given):
    """Return what a call says that must be refused."""
    with pytest.raises(HeptiError) as caught:
        call(*given)
    text = str(caught.value)
    assert text, given
    assert "\n" not in text, text
    return text
