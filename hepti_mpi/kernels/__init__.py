"""What a rank computes: numpy, the reference, and onnxruntime; float32 and int8."""
