"""Passes on the tensor graph, before fusion; those for one kind of chip lie in `cpu` and `gpu`."""
