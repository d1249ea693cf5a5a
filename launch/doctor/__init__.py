"""What is wrong with a cluster, and how to mend it."""
