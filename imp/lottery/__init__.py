"""Lottery tickets: iterative magnitude pruning with rewinding, from images to a report."""

__version__ = "0.2.0"
