"""Where PyTorch's programs look for helpers: `checkpoint`, `data`."""
