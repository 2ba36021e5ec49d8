"""Processes on networks of their own: namespaces on one bridge, each link of a given rate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Where the store is, on the bridge.
ADDRESS = "10.77.0.254"


def can_be_made() -> bool:
    """Whether this user may make networks here."""
    if not (shutil.which("ip") and shutil.which("tc")) or os.geteuid():
        return False
    made = subprocess.run(["ip", "netns", "add", "genesis-try"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "genesis-try"], capture_output=True, check=False)
    return made.returncode == 0


def do(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@contextmanager
def network(count: int, rate: str) -> Iterator[None]:
    """Namespaces g0, g1, ..; whatever was left of earlier ones is removed first."""

    def remove() -> None:
        for k in range(count):
            with suppress(subprocess.CalledProcessError):
                do(f"ip netns del g{k}")
        with suppress(subprocess.CalledProcessError):
            do("ip link del gbr")

    remove()
    try:
        do("ip link add gbr type bridge")
        do(f"ip addr add {ADDRESS}/24 dev gbr")
        do("ip link set gbr up")
        for k in range(count):
            do(f"ip netns add g{k}")
            do(f"ip link add gv{k} type veth peer name gp{k}")
            do(f"ip link set gp{k} netns g{k}")
            do(f"ip link set gv{k} gso_max_segs 1")
            do(f"ip -n g{k} link set gp{k} gso_max_segs 1")
            do(f"ip link set gv{k} master gbr up")
            do(f"ip -n g{k} addr add 10.77.0.{k + 1}/24 dev gp{k}")
            do(f"ip -n g{k} link set gp{k} up")
            do(f"ip -n g{k} link set lo up")
        shape(count, rate)
        yield
    finally:
        remove()


def shape(count: int, rate: str) -> None:
    """Give the links a rate, in both directions."""
    limit = f"root tbf rate {rate} burst 16kb latency 400ms"
    for k in range(count):
        do(f"tc qdisc replace dev gv{k} {limit}")
        do(f"ip netns exec g{k} tc qdisc replace dev gp{k} {limit}")


def link(number: int, state: str) -> None:
    """Take a link ``down``, or ``up`` again."""
    do(f"ip link set gv{number} {state}")


class Processes:
    """One process in each namespace, without a launcher: what they print comes line by line."""

    def __init__(self, count: int, elastic: bool, *command: str) -> None:
        from genesis.distributed.process_groups import c10d

        self.store = c10d().TCPStore(ADDRESS, 0, None, True, wait_for_workers=False)
        read, write = os.pipe()
        self.lines = os.fdopen(read)
        common = {
            "WORLD_SIZE": str(count), "MASTER_ADDR": ADDRESS, "GENESIS_NUM_THREADS": "1",
            "MASTER_PORT": str(self.store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        }  # fmt: skip
        if elastic:
            common["GENESIS_FIRST"] = str(count)
        self.processes = []
        for k in range(count):
            own = {"RANK": str(k), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": f"gp{k}"}
            if elastic:
                own["GENESIS_MEMBER"] = str(k)
            self.processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", f"g{k}", sys.executable, *command],
                    env={**os.environ, **common, **own},
                    stdout=write,
                    stderr=subprocess.DEVNULL,
                )
            )
        os.close(write)

    def read(self) -> Iterator[Any]:
        """Lines of JSON, until all processes have ended."""
        return (json.loads(line) for line in self.lines)

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.lines.close()
