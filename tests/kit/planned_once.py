"""What the planning command line plans is planned once, however many of a module's tests look at it.

All else runs as it does: options are read, plans are written and printed. What is remembered is what a planner, or a
comparison, returns for the same model, cluster, rows and wire.
"""

from contextlib import contextmanager
from importlib import import_module

import pytest

PLANNERS = {
    "solver.cli": ("plan_encoder", "upgrades", "compare", "explain"),
    "solver.network_cli": ("plan_network", "compare_networks", "solve_replicas"),
    "solver.decoder_cli": ("plan_decoder", "compare_decoders"),
}


@contextmanager
def shared():
    """Let the command line ask for every plan once."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in PLANNERS.items():
            for name in names:
                patch.setattr(f"{module}.{name}", _remembered(getattr(import_module(module), name)))
        yield


def _remembered(function):
    known = {}

    def found(*arguments, **facts):
        # Not what says how far it is: another each time.
        key = repr([[given for given in arguments if not callable(given)], facts])
        if key not in known:
            known[key] = function(*arguments, **facts)
        return known[key]

    return found
