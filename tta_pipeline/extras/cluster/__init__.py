"""Work on many machines: unfinished work is cut into pieces and given to an engine (Dagster, Ray or Slurm)."""
