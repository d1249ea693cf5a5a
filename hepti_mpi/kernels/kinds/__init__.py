"""What computes the parts of a model: nodes of onnxruntime graphs, one file a kind of block; and all parts in numpy."""
