"""What a language model's plan costs: what is asked for, the memory of every rank, the seconds of a pass."""
