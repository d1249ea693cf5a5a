"""Plans of convolutional networks: the shortest path over segments and crews, the descent behind it, and all plans."""
