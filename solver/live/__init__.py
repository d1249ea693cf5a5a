"""From measurements to a decision: how fast devices are now, and whether another plan pays."""
