"""Systems side by side on the same hosts."""
