"""Work on a cluster: three jobs of Slurm's, whose queue is the only state."""
