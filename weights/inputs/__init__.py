"""What travels in a weights file beside the weights: how texts and images become input."""
