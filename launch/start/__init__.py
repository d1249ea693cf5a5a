"""Hostfiles and mpirun command lines."""
