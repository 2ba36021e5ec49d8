"""`jit`: functions watched once, turned into programs, and replayed."""
