"""One device alone, on common runtimes: what a split must beat."""
