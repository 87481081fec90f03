"""What this machine has: GPUs, memory, versions."""
