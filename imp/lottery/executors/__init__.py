"""Where networks are trained: in this process, in others of this host, on MPI ranks, in a Slurm array, or by the executor of
another package."""
