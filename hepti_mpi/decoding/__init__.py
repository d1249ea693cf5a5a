"""Language models on all ranks: a rank's share of one, its passes over new tokens, and who leads them."""
