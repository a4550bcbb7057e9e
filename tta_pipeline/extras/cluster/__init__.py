"""Work on many machines: what is unfinished, cut into pieces, given to an engine that exists (Dagster, Ray, Slurm)."""
