"""The CPU runtime: a native thread pool, memory, and NUMA nodes."""
