"""Benchmarks: Genesis side by side with the alternative, on the same work, as a ratio."""
