"""All kinds of blocks, by the names under which files and plans have them."""

from __future__ import annotations

from solver.model.blocks import BlockKind
from solver.model.kinds.attention import Attention
from solver.model.kinds.mlp import Mlp

KINDS: dict[str, type[BlockKind]] = {kind.name: kind for kind in (Attention, Mlp)}
