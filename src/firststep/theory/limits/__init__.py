"""Limits of many samples: random features, the staircase, bounds, weights."""
