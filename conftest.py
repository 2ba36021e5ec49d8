"""What is collected: modules of a front end that is not installed have no doctests to run."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("jaxlib") else ["genesis/jax"]
