"""Tests of the room `publishing`."""
