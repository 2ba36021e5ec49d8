"""Schedules for CPUs."""
