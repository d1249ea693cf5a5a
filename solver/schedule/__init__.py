"""What a plan does, step by step, and what it costs: seconds, bytes on the wire, memory."""
