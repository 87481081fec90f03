"""What a run has found: read from its directory, compared, drawn. Needs no TensorFlow."""
