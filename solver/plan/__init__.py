"""Who has what: spans and partitions, plans and their files, the weights that follow from them."""
