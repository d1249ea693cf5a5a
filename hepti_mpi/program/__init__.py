"""The engine: a schedule, compiled to a rank's buffers and calls, and run; what a rank holds of weights and state."""
