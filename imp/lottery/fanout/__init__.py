"""Executors: tasks done in this process, by MPI ranks, or by the tasks of a Slurm array."""
