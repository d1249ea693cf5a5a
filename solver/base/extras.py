"""What installs the packages of an extra: Hepti is on no index, so by its name nothing can be installed."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

NAME = "hepti"
_CHECKOUT = Path(__file__).resolve().parents[2]


def install(extra: str) -> str:
    """Return the command: of the checkout that this code lies in, or else of the packages themselves."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        place = "." if Path.cwd() == _CHECKOUT else str(_CHECKOUT)
        return f"pip install -e '{place}[{extra}]'"
    return f"pip install {' '.join(packages(extra))}"


def packages(extra: str) -> list[str]:
    """Return the packages of an extra of the installed Hepti, each as a shell takes it."""
    marked = (line.partition(";") for line in metadata.requires(NAME) or ())
    return [f"'{package.strip()}'" for package, _, marker in marked if f'"{extra}"' in marker.replace("'", '"')]
