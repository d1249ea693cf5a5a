"""Language models: their weights file, its blocks, checkpoints of every family, and numbers to compare with."""
