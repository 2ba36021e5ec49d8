"""Expressions and kernels: the languages the compiler speaks, and their two interpreters."""
