"""The product by which a lab's hosts are given their speeds."""

import sys

import numpy as np
import pytest

from launch.lab.probe import COLUMNS, INNER, ROWS, product


@pytest.mark.parametrize("missing", [None, "onnxruntime"])
def test_the_product_is_that_of_layers_and_numpys_where_there_is_no_other(monkeypatch, missing):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)

    found = np.squeeze(product()())

    assert found.dtype == np.float32
    assert np.array_equal(found, np.full((ROWS, COLUMNS), INNER))
