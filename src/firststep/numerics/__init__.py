"""Solvers that know nothing of networks."""
