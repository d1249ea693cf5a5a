"""Kinds of blocks, one a file; and what they are made of: parts, which can be cut, and their tensors."""
