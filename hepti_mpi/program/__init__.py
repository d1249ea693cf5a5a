"""A rank's part in a schedule, compiled to places and calls, of networks and language models; the latter's state."""
