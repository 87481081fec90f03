"""The stages: what each command does. They share nothing but the run directory."""
