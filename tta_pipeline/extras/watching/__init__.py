"""A folder where images arrive: each content is kept once, in the folder of the day on which it came."""
