"""What a rank computes: numpy, the reference, and onnxruntime; float32, int8 and int4."""
