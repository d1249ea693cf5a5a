"""The layers, run as a plan says: blocks, stages, replicas, and loading their weights."""
