"""From a checkpoint directory to a weights file."""
