"""Programs: kernels in order, where everything lies in memory, and how they are kept on disk."""
