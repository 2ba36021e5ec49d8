"""Fusion: which values are stored, and which are computed where they are used."""
