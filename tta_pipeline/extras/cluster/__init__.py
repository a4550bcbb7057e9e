"""Work on a cluster: three Slurm jobs; Slurm's queue is the only state."""
