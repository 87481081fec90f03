"""Stage 1: images to TFRecord shards, once per data set and size. Knows nothing of training."""
