"""Special functions: formulas on elements, and their coefficients."""
