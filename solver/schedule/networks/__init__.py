"""What a plan of segments of a convolutional network costs."""
