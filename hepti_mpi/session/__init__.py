"""A job from its command line to its report: one way for all models; what differs by their kind is in a class each."""
