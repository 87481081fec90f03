"""Jobs handed out to MPI ranks."""
