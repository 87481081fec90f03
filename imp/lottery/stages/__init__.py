"""The stages: what each command does. They meet in the run directory only."""
