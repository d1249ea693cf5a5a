"""The mathematics: the convex and the integer program, and the search between them."""
