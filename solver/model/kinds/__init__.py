"""Kinds of blocks, one a file: their parts, and what of a part can be cut."""
