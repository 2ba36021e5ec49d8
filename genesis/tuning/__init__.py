"""Tuning: schedules found by measuring, where rules could be better.

The compiler's schedule rules decide, and at places ask which of several options to take
(`genesis.compiler.schedule.decisions`). `tune` runs a function once to learn which kernels it
consists of (`jobs`), measures them one by one (`measure`) in other schedules, picked by a model of
what they cost (`model`, `search`), and keeps the decisions that were clearly faster in a file that
the compiler looks at (`genesis.compiler.tuning_records`). Nothing here has a part in what is
computed: tuned kernels are proven as any others.
"""

from genesis.tuning.tuner import Tuning, tune

__all__ = ["Tuning", "tune"]
