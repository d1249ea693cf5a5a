"""`hepti`, the one command: what it calls, and mpirun kept out of the person's way."""
