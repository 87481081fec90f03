"""Trackers: where the figures of each network are also shown while it trains."""
