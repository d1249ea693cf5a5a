"""Measuring a cluster: kernels, links, unrest; the result is a cluster file."""
