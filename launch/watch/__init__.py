"""Programs on boards, and whether they live: heartbeats, mpirun, what is lost of its ranks."""
