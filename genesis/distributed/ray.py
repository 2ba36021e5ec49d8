"""Processes by Ray: actors that a placement group has room for, each one rank.

They find each other as under any launcher: by environment variables, the first one's store at an
address that it has chosen. If one fails, all are ended, and started again while there are restarts.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


class RayWorker:
    """What an actor does."""

    def place(self) -> tuple[str, int]:
        """The address of its machine, and a port that is free there."""
        import ray

        with socket.socket() as found:
            found.bind(("", 0))
            return str(ray.util.get_node_ip_address()), int(found.getsockname()[1])

    def run(self, environment: Mapping[str, str], function: Callable[[], T]) -> T:
        """Call a function as a rank."""
        os.environ.update(environment)
        return function()


def on_ray(
    function: Callable[[], T],
    count: int,
    *,
    resources: Mapping[str, float] | None = None,
    restarts: int = 0,
) -> list[T]:
    """Call a function on so many processes that Ray starts; what each returns, by rank.

    Each takes `resources` of the cluster, one processor if it is not said. Where one fails, all are
    started again, up to so many times: they go on from their checkpoint (`restore`).
    """
    try:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
    except ImportError as error:
        raise ImportError("on_ray needs Ray: pip install ray") from error
    if count < 1:
        raise ValueError(f"on_ray: {count} processes")
    bundle = dict(resources or {"CPU": 1})
    room = placement_group([bundle] * count)
    options = {"num_cpus": bundle.pop("CPU", 0), "num_gpus": bundle.pop("GPU", 0)}
    actor = ray.remote(RayWorker)
    try:
        ray.get(room.ready())
        for generation in range(restarts + 1):
            workers = [
                actor.options(
                    scheduling_strategy=PlacementGroupSchedulingStrategy(room, k),
                    resources=bundle,
                    **options,
                ).remote()
                for k in range(count)
            ]
            try:
                places = ray.get([w.place.remote() for w in workers])
                order = sorted(range(count), key=lambda k: places[k][0])  # neighbours on a machine
                environments = _environments([places[k] for k in order], generation)
                pairs = zip((workers[k] for k in order), environments, strict=True)
                found: list[T] = ray.get([w.run.remote(e, function) for w, e in pairs])
                return found
            except ray.exceptions.RayError:
                if generation == restarts:
                    raise
            finally:
                for worker in workers:
                    ray.kill(worker)
    finally:
        remove_placement_group(room)
    raise AssertionError("a last attempt ends or raises an error")


def _environments(places: list[tuple[str, int]], generation: int) -> list[dict[str, str]]:
    """What every process has to know, by rank.

    >>> [e["LOCAL_RANK"] for e in _environments([("a", 1), ("a", 2), ("b", 1)], 0)]
    ['0', '1', '0']
    """
    hosts = Counter(host for host, _ in places)
    seen = Counter[str]()
    found = []
    for rank, (host, _) in enumerate(places):
        found.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(places)),
                "LOCAL_RANK": str(seen[host]),
                "LOCAL_WORLD_SIZE": str(hosts[host]),
                "MASTER_ADDR": places[0][0],
                "MASTER_PORT": str(places[0][1]),
                "TORCHELASTIC_RESTART_COUNT": str(generation),
            }
        )
        seen[host] += 1
    return found


__all__ = ["on_ray"]
