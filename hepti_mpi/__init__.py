"""Computes: the MPI program that runs one model over unequal ranks.

Letters, here and in comments: S rows (tokens of the whole batch), H hidden, F feed-forward width, A heads, d head
width, L layers, p ranks. `x_full` lies on all ranks, `x_rows` is this rank's rows, `x_cols` its columns, `x_part` its
full-size summand.
"""

from solver.base.environment import send_no_telemetry

send_no_telemetry()
