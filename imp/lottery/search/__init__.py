"""Hyperparameters searched: values put into a recipe, the study that remembers every trial, and the page of what it found."""
