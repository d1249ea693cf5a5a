"""Stores: the weights file, conversion from checkpoints, synthetic weights, tokenizing. No MPI."""

from solver.base.environment import send_no_telemetry

send_no_telemetry()
