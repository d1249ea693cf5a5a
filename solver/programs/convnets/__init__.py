"""Plans of convolutional networks: the shortest path over segments and crews, the descent after it, and all plans."""
