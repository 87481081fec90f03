"""Masks and what they keep: pure NumPy, no files, no TensorFlow."""
