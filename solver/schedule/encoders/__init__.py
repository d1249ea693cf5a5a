"""What an encoder's plan does, step by step, and what it costs."""
