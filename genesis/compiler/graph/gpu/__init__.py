"""Passes on the tensor graph for GPUs: layouts and sizes that matrix units want."""
