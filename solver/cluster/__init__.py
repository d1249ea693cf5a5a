"""On what: devices, their curves, their links; ready cluster files, and what-if."""
