"""What numbers are in: float32 stays float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Numbers = NDArray[Any]  # of any type, as a graph takes and gives them
FLOAT_BYTES = 4
