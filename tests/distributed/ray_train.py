"""A training on two actors of Ray, one of which is killed in the first life."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import genesis.distributed as gd

HERE = str(Path(__file__).parent)


def work() -> list[float]:
    sys.path.insert(0, HERE)
    from train import train

    if gd.rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return train("mlp", "zero3", 4)


if __name__ == "__main__":
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    print(json.dumps(gd.on_ray(work, 2, restarts=1)))
    ray.shutdown()
