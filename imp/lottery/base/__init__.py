"""What every other room stands on: errors, files, locks, progress, signals, plugins, and the machine."""
