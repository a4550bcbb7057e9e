"""Leaves: each could be taken out without touching how a number comes about."""
