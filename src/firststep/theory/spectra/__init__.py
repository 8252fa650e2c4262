"""Predicted spectra of features and weights."""
