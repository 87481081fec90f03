"""Keras networks on any backend: how their channels are connected, and smaller networks without some of these."""
