"""The GPU runtime: drivers, memory, transfers, launches and captured graphs."""
