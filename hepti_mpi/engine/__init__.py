"""Encoders and networks, run as a plan says: blocks, segments, stages, replicas, and loading their weights."""
