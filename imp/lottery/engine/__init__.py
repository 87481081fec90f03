"""The engine: TensorFlow, the networks and their training. `start.start_tensorflow` comes before any import from here."""
