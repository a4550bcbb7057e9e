"""Results that leave the building: a folder with everything that decides them, and the way to repeat it."""
