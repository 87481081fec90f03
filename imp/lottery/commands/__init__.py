"""The commands by subject. A command imports its stage only when it is called, so that `imp --help` is fast."""
