"""Hyperparameters searched: values put into a recipe, the trials, and a worker that trains them."""
