"""Decides: model and cluster descriptions, cost model, programs and published systems. No MPI, no h5py.

This file imports nothing, so that reading a plan costs only the standard library and numpy.
"""
