"""Measurements of this machine, each a command: `imp bench NAME`."""
