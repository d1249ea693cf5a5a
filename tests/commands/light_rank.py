"""`mpirun … python -m tests.commands.light_rank …`: a job whose ranks other than 0 are on light boards.

Their imports find the standard library, Hepti, and the packages of the extras `worker` and `fast` with what these need;
HEPTI_LIGHT=worker: not those of `fast`.
"""

import os
import sys
import tomllib
from importlib import import_module, metadata

from packaging.requirements import Requirement

from tests.kit.commands import ROOT

LIGHT = tuple(os.environ.get("HEPTI_LIGHT", "worker fast").split())


def with_needs(requirements, found):
    """Add to `found` the distributions that requirements name, and those that these need."""
    for text in requirements:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            with_needs(metadata.requires(name) or [], found)
    return found


class OnlyLight:
    """Finds no module that a light board lacks."""

    def __init__(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        light = with_needs([text for extra in LIGHT for text in extras[extra]], set())
        ours = {"hepti_mpi", "solver", "weights", "launch", "tests"}
        self.names = ours | {
            module
            for module, homes in metadata.packages_distributions().items()
            if any(home.lower().replace("_", "-") in light for home in homes)
        }

    def find_spec(self, name, path=None, target=None):
        """Refuse what a light board has not; the usual finders look for the rest."""
        top = name.partition(".")[0]
        if top not in self.names and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"no module named {name!r} on a light board", name=name)


if __name__ == "__main__":  # the planner's process imports this, too
    if os.environ["OMPI_COMM_WORLD_RANK"] != "0":
        sys.meta_path.insert(0, OnlyLight())
        for name in [name for name in sys.modules if name.partition(".")[0] == "packaging"]:
            del sys.modules[name]  # it was for this program alone
    sys.exit(import_module("hepti_mpi.__main__").main(sys.argv[1:]))
