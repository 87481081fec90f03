"""Where networks are trained: in this process, in others, on MPI ranks, in a Slurm array, or by another package."""
