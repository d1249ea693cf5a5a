"""Stores: the weights file, conversion from checkpoints, synthetic weights, tokenizing. No MPI."""
