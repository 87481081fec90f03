"""What runs in a process of its own (see `bench.apart`): it starts TensorFlow, measures, and returns what JSON can hold."""
