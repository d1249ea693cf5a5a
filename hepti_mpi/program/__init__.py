"""The engine of language models: a schedule, compiled to buffers and calls, and run; a rank's weights and state."""
