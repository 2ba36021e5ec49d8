"""Passes on the tensor graph for CPUs."""
