"""Where files are kept that can be made again: converted weights, profiles, what was tried on this board."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder, which need not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hepti"


def profile_path(fingerprint: str) -> Path:
    """Return where a profile is kept."""
    return cache_folder() / f"cluster-{fingerprint}.toml"
