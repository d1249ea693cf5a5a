"""One device alone, on common runtimes: what a split must beat."""

from solver.base.environment import send_no_telemetry

send_no_telemetry()
