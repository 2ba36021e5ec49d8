"""Schedules for sums of products on CPUs: register tiles over packed operands."""
