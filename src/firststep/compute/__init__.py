"""Processes, memory and progress."""
