"""Hyperparameters searched: what is searched (`space`), the study that remembers every trial, and the page of what it found."""
