"""A service outside mpirun: HTTP, a journal of open requests, and what starts and watches the ranks."""
