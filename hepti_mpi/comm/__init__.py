"""All of MPI: ranks, exchanges between layouts, how numbers travel."""
