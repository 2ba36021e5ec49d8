"""Profiling: which kernels the time goes to, how fast they are, and which lines they came from.

`profile` watches programs run and gives a table, a trace and a roofline; `this_machine` is what the
machine can do at most, measured by kernels of our own; `bench` shows how near to that we come.
"""

from genesis.profiling.machine import Machine, this_machine
from genesis.profiling.profiler import KernelProfile, Profile, profile

__all__ = ["KernelProfile", "Machine", "Profile", "profile", "this_machine"]
