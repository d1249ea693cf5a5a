"""Language models on all ranks: passes over new tokens, sequences that are kept apart, and what is told of them."""
