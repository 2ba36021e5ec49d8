"""Schedules for chips of many threads."""
