"""What is collected: modules of a front end that is not installed have no doctests to run."""

from importlib.util import find_spec

FRONT_ENDS = {"jaxlib": "genesis/jax", "lightning": "genesis/torch/lightning.py"}
collect_ignore = [path for package, path in FRONT_ENDS.items() if not find_spec(package)]
