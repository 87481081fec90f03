"""The results of a run: read from its directory, compared and drawn. Needs no TensorFlow."""
