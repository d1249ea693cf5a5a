"""What computes the parts of a language model: nodes of graphs, one file a kind of block; and all in numpy."""
