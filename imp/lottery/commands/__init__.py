"""The commands by subject. Each imports its stage when it is called, so that `imp --help` answers at once."""
