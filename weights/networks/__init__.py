"""Convolutional networks: ONNX files read, in whatever form the world writes them."""
