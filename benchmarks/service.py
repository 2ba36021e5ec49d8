"""What `genesis serve` promises those who wait, under more load than it can bear.

    python -m benchmarks.service MODEL [--only priorities,retry,drain,policies]

*priorities*: text that nobody is in a hurry for comes at twice the rate that the server has, and
beside it requests that are: these are to have their first token in time, 95 of 100, and the others
at least a tenth of what the server can do. *retry*: a flood; whoever is told when to come back is
compared with whoever came just before and was let in: what he was told, and that one's wait, are
to be within twice each other, 80 of 100. *drain*: clients ask on and on while the server is told
to end: whoever was accepted has the whole answer, whoever was not is told so, and the server ends
with 0. *policies*: what went otherwise if pages had been evicted
otherwise is simulated from a trace, and tried: the one that is better is to be better.

It ends with 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.serve import PORT, genesis_command, served
from genesis.serve.limits import TIERS
from genesis.serve.load_generator import PlannedRequest, RequestOutcome, Target, send
from genesis.serve.simulate import System, read, recorded, run

INPUT, OUTPUT = 64, 16  # tokens of a request
URL = f"http://127.0.0.1:{PORT}"


def requests(count: int, rate: float | None = None, seed: int = 0) -> list[PlannedRequest]:
    """Requests at random times, or at none, which share nothing."""
    rng, at, found = random.Random(seed), 0.0, list[PlannedRequest]()
    for _ in range(count):
        found.append((at, [rng.randrange(10, 300) for _ in range(INPUT)], OUTPUT))
        at += rng.expovariate(rate) if rate else 0.0
    return found


def capacity(target: Target) -> float:
    """Requests a second of clients who wait for their answers."""
    send(target, requests(32, seed=-1), 32)  # compiles, and what steps take is learned
    begin = time.monotonic()
    send(target, requests(96, seed=-2), 32)
    return 96 / (time.monotonic() - begin)


def wait(outcome: RequestOutcome) -> float:
    """Seconds to the first token."""
    return outcome.times[0] - outcome.sent


def answered(outcomes: list[RequestOutcome]) -> list[RequestOutcome]:
    """Those who got their answer; nobody may get anything but that or a time to come back."""
    assert {o.status for o in outcomes} <= {"200", "429"}, {o.status for o in outcomes}
    return [o for o in outcomes if o.status == "200"]


def priorities(model: str) -> bool:
    """Whether those in a hurry have their first tokens in time, and the others a share."""
    with served(genesis_command(model, None, 384, 32)):
        full = capacity(Target(URL, None, None))
        seconds = min(30.0, 400 / full)  # those who wait are a thread each
        flood = requests(int(2 * full * seconds), 2 * full, seed=1)
        hurry = requests(int(full * seconds / 4), full / 4, seed=2)
        found: list[RequestOutcome] = []
        target = Target(URL, None, None, service_tier="flex")
        others = threading.Thread(target=lambda: found.extend(send(target, flood, None)))
        begin = time.monotonic()
        others.start()
        urgent = answered(send(Target(URL, None, None, service_tier="priority"), hurry, None))
        passed = time.monotonic() - begin
        others.join()
    aim = TIERS["priority"].first_token
    in_time = sum(wait(o) <= aim for o in urgent) / len(hurry)
    tokens = sum(t <= begin + passed for o in answered(found) for t in o.times)
    share = tokens / (full * OUTPUT * passed)
    print(f"priorities: {full:.1f} requests a second; {in_time:.1%} of {len(hurry)} within "
          f"{aim:g} s beside {len(flood)} others, who had {share:.0%} of the server and "
          f"{len(answered(found))} answers")  # fmt: skip
    return in_time >= 0.95 and share >= 0.1


def retry(model: str, folder: Path) -> bool:
    """Whether who is told to come back is told when he would have been served."""
    (folder / "flood.toml").write_text(
        "[tiers.default]\nfirst_token = 1.0\n[caps]\nqueue_seconds = 6.0\n"
    )
    more = ["--config", str(folder / "flood.toml")]
    with served([*genesis_command(model, None, 384, 32), *more]):
        target = Target(URL, None, None)
        full = capacity(target)
        rate = min(4 * full, 40.0)
        found = sorted(send(target, requests(int(rate * 20), rate, seed=3), None),
                       key=lambda o: o.sent)  # fmt: skip
    right, last, told = 0, 0.0, list[tuple[float, float]]()
    answered(found)
    for outcome in found:
        if outcome.status == "200":
            last = wait(outcome)
        elif outcome.waited is not None:
            told.append((outcome.waited, last - 1.0))  # to have it in the time that is aimed at
    right = sum(real / 2 <= said <= 2 * real for said, real in told)
    if not told:
        print(f"retry: nobody of {len(found)} was refused at {rate:.0f} requests a second")
        return False
    said, real = (sorted(column)[len(told) // 2] for column in zip(*told, strict=True))
    print(f"retry: {len(told)} of {len(found)} were told to come back, in {said:.0f} s at the "
          f"median, and would have waited {real:.1f} s; {right / len(told):.0%} within "
          "twice that")  # fmt: skip
    return right >= 0.8 * len(told)


def drain(model: str) -> bool:
    """Whether a server that is told to end loses nothing that it has accepted."""
    with served([*genesis_command(model, None, 384, 32), "--grace", "120"]) as server:
        target = Target(URL, None, None)
        full, found = capacity(target), list[RequestOutcome]()
        todo = requests(int(20 * full) + 64, seed=5)
        clients = threading.Thread(target=lambda: found.extend(send(target, todo, 64)))
        clients.start()
        time.sleep(5)
        server.send_signal(signal.SIGTERM)
        clients.join()
        ended = server.wait(60)
    counts = Counter(outcome.status for outcome in found)
    print(f"drain: {dict(counts)}, the server ended with {ended}")
    told = {"200", "503", "ConnectionRefusedError", "ConnectionResetError"}
    begun = [o for o in found if o.times and o.status != "200"]
    whole = counts["200"] >= 64 and len(found) > counts["200"]  # all clients were waiting, then
    return counts.keys() <= told and not begun and whole and ended == 0


def policies(model: str, folder: Path) -> bool:
    """Whether the better of two ways to evict pages is the better one in a simulation, too."""
    rng = random.Random(4)
    prefixes = [[rng.randrange(10, 300) for _ in range(256)] for _ in range(18)]
    todo: list[PlannedRequest] = [
        (0.0, [*prefix, *(rng.randrange(10, 300) for _ in range(16))], OUTPUT // 2)
        for _ in range(5)
        for prefix in prefixes  # in turns, and more than fit
    ]
    live, simulated, rows = dict[str, float](), dict[str, float](), list[str]()
    for policy in ("lru", "heat"):
        trace = folder / f"{policy}.jsonl"
        # A cache has pages for one text more than are continued: 72 of 64 tokens.
        command = [*genesis_command(model, None, 384, 11), "--policy", policy]
        with served([*command, "--record", str(trace)]):
            begin = time.monotonic()
            outcomes = answered(send(Target(URL, None, None), todo, 4))
            live[policy] = len(outcomes) / (time.monotonic() - begin)
        rows.append(f"{policy} {live[policy]:.2f} requests a second and "
                    f"{recorded(read(trace)[0]).row()['hit %']:.0f} % found")  # fmt: skip
    arrivals, system = read(folder / "lru.jsonl")  # from one trace and machine, both
    for k, policy in enumerate(live):
        result = run(arrivals, System(**{**system, "policy": policy}, clients=4))
        simulated[policy] = len(result.ends) / result.seconds
        rows[k] += f", simulated {simulated[policy]:.2f} and {result.row()['hit %']:.0f} %"
    print("policies: " + "; ".join(rows))
    return max(live, key=live.__getitem__) == max(simulated, key=simulated.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a folder or a GGUF file")
    parser.add_argument("--only", default="priorities,retry,drain,policies")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        kept = {
            "priorities": lambda: priorities(options.model),
            "retry": lambda: retry(options.model, Path(folder)),
            "drain": lambda: drain(options.model),
            "policies": lambda: policies(options.model, Path(folder)),
        }
        broken = [name for name in options.only.split(",") if not kept[name]()]
    raise SystemExit(f"not kept: {', '.join(broken)}" if broken else 0)


if __name__ == "__main__":
    main()
