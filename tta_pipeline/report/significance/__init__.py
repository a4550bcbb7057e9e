"""Paired significance tests on stored predictions: is one experiment better than another by more than chance?"""
