"""Checkpoints: bits after resuming, and what is left of a process that was stopped anywhere."""

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import data, nn, optim
from genesis.cli import main
from genesis.ndarray.random import Generator
from genesis.serialization import BadFile
from genesis.train import Checkpoints, CheckpointWarning, checkpoint_files

ROOT = Path(__file__).parents[2]


class Noisy(data.Dataset[Any]):
    """Samples with augmentation, that is, with random numbers."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.random.random(4).astype(np.float32) + index, np.float32(index)


class Training:
    """All that a training may be made of, small."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        genesis.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        frozen = nn.Linear(4, 4).requires_grad_(False)
        self.model = nn.Sequential(frozen, nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        live = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optim.AdamW(live, lr=0.01, betas=(0.8, 0.9))
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.scaler = genesis.amp.GradScaler(growth_interval=2)
        self.loader = data.DataLoader(Noisy(), 4, shuffle=True)
        self.own = Generator(7)
        self.checkpoints = Checkpoints(
            folder, keep=keep, model=self.model, optimizer=self.optimizer,
            schedule=self.schedule, scaler=self.scaler, loader=self.loader, own=self.own,
        )  # fmt: skip
        self.step = self.checkpoints.resume() or 0

    def run(self, until: int, every: int = 1) -> list[float]:
        losses = []
        while self.step < until:
            for x, y in self.loader:
                noise = genesis.rand(4, 1, generator=self.own) + random.random() + np.random.rand()
                loss = ((self.model(x) + noise - y.reshape(-1, 1)) ** 2).mean()
                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.schedule.step()
                self.step += 1
                losses.append(loss.item())
                if self.step % every == 0:
                    self.checkpoints.save(self.step, loss=losses[-1])
                if self.step == until:
                    break
        return losses

    def bits(self) -> dict[str, bytes]:
        return {name: x.numpy().tobytes() for name, x in self.model.state_dict().items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, bytes]]:
    """Eight steps without a stop."""
    training = Training(tmp_path_factory.mktemp("whole"))
    losses = training.run(8)
    training.checkpoints.close()
    return losses, training.bits()


Reference = tuple[list[float], dict[str, bytes]]


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_resumed_bit_for_bit(tmp_path: Path, reference: Reference, stop: int) -> None:
    first = Training(tmp_path)
    before = first.run(stop)
    first.checkpoints.close()
    second = Training(tmp_path)
    assert second.step == stop
    after = second.run(8)
    assert before + after == reference[0]
    assert second.bits() == reference[1]
    second.checkpoints.close()


def test_what_is_saved_is_what_was_there(tmp_path: Path) -> None:
    """Training goes on while a thread writes."""
    training = Training(tmp_path)
    training.run(2)
    bits = training.bits()
    training.run(3, every=10)
    training.checkpoints.close()
    assert training.bits() != bits
    assert Training(tmp_path).bits() == bits


def test_unchanged_tensors_are_not_written_again(tmp_path: Path) -> None:
    large = nn.Linear(300, 300)
    small = nn.Linear(2, 2)
    with Checkpoints(tmp_path, large=large, small=small) as checkpoints:
        for step in range(1, 6):
            with genesis.no_grad():
                small.weight += 1
            checkpoints.save(step)
            checkpoints.wait()
    sizes = [checkpoint_files.read(tmp_path, step).own_bytes for step in (3, 4, 5)]
    assert max(sizes) < 20_000 < large.weight.numel() * 4
    files = list(tmp_path.glob("*.safetensors"))
    assert sum(f.stat().st_size for f in files) < 1.2 * large.weight.numel() * 4
    # What little is left of a file is written again, and the file deleted.
    with Checkpoints(tmp_path, large=large, small=small, keep=1) as checkpoints:
        assert checkpoints.resume() == 5
        with genesis.no_grad():
            large.weight += 1
        checkpoints.save(6)
    total = sum(f.stat().st_size for f in tmp_path.glob("*.safetensors"))
    assert total < 1.2 * large.weight.numel() * 4


def test_retention(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2, keep_every=4, model=nn.Linear(1, 1)) as checkpoints:
        for step in range(1, 11):
            checkpoints.save(step)
    assert checkpoint_files.steps(tmp_path) == [10, 9, 8, 4]
    # After going back, the last is the one that was written last.
    with Checkpoints(tmp_path, keep=2, model=nn.Linear(1, 1)) as checkpoints:
        checkpoints.resume(4)
        checkpoints.save(5)
    with Checkpoints(tmp_path, model=nn.Linear(1, 1)) as checkpoints:
        assert checkpoints.resume() == 5


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    def another() -> None:
        with pytest.raises(RuntimeError, match="another process writes to"):
            Checkpoints(tmp_path, model=nn.Linear(1, 1))

    with Checkpoints(tmp_path, model=nn.Linear(1, 1)):
        assert in_child(another) == 0


def test_another_training_is_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, model=nn.Linear(1, 1)) as checkpoints:
        checkpoints.save(1)
    with (
        pytest.raises(ValueError, match=r"has \['model'\], this training \['net'\]"),
        Checkpoints(tmp_path, net=nn.Linear(1, 1)) as checkpoints,
    ):
        checkpoints.resume()
    with pytest.raises(TypeError, match="x is a int without state_dict"):
        Checkpoints(tmp_path, x=3)  # type: ignore[arg-type]


def test_what_cannot_be_saved_is_said_at_once(tmp_path: Path) -> None:
    class Odd(Counter):
        def state_dict(self) -> Any:
            return {"callback": print}

    with Checkpoints(tmp_path, odd=Odd()) as checkpoints:
        with pytest.raises(TypeError, match=r"parts\.odd\.callback is a builtin_function"):
            checkpoints.save(1)
        with pytest.raises(ValueError, match="from 0 on, not -1"):
            checkpoints.save(-1)


# ---- stopped anywhere


def in_child(work: Callable[[], None]) -> int:
    """The status of a child that does some work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(70)
        os._exit(0)
    return os.waitpid(child, 0)[1]


class Countdown:
    """Ends the process before its n-th change of the file system."""

    CHANGES = ("fsync", "replace", "unlink", "open")

    def __init__(self, left: int) -> None:
        self.left = left
        for name in self.CHANGES:
            setattr(os, name, self.counted(getattr(os, name)))
        self.save = checkpoint_files.save
        checkpoint_files.save = self.half_written  # type: ignore[assignment]

    def counted(self, change: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            return change(*args, **kwargs)

        return called

    def half_written(self, state: Any, path: Path) -> None:
        path.with_name(f".{path.name}.0123456789abcdef").write_bytes(b"half")
        self.tick()
        self.save(state, path)

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Counter:
    """A training that is a number, so that what it must be after a step is known."""

    def __init__(self) -> None:
        self.value = genesis.zeros(3)

    def state_dict(self) -> Any:
        return {"value": self.value, "same": genesis.ones(5)}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"].clone()


def count_on(folder: Path, steps: int) -> None:
    counter = Counter()
    with Checkpoints(folder, keep=2, counter=counter) as checkpoints:
        start = checkpoints.resume() or 0
        assert counter.value.tolist() == [float(start)] * 3
        for step in range(start + 1, start + 1 + steps):
            counter.value = counter.value + 1
            checkpoints.save(step)
            checkpoints.wait()


def test_killed_before_each_change_of_the_disk(tmp_path: Path) -> None:
    """Whatever moment it is, the next process finds a whole checkpoint, and cleans up."""
    count_on(tmp_path, 3)
    last, killed = 3, 0

    def work(moment: int) -> None:
        Countdown(moment)
        count_on(tmp_path, 1)

    for moment in range(1, 100):
        status = in_child(lambda moment=moment: work(moment))  # type: ignore[misc]
        assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
        newest = checkpoint_files.readable(tmp_path)
        for checkpoint in newest:
            values = set(checkpoint.load()["parts"]["counter"]["value"].tolist())
            assert values == {float(checkpoint.step)}
        assert newest[0].step in (last, last + 1)
        last = newest[0].step
        if os.WIFEXITED(status):
            assert status == 0
            break
        killed += 1
    assert killed >= 8
    count_on(tmp_path, 1)
    kept = checkpoint_files.steps(tmp_path)
    assert len(kept) == 2
    assert len(list(tmp_path.iterdir())) <= 6  # two texts, up to three files, the lock


def killed_after(folder: Path, steps: int, seconds: float) -> int:
    """Train in a child that is killed some time after some steps; the step it began with."""
    reader, writer = os.pipe()

    class Reporting(Training):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "step":
                os.write(writer, value.to_bytes(8, "little"))

    child = os.fork()
    if child == 0:
        try:
            Reporting(folder).run(1_000_000)
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb", buffering=0) as reports:
        first = int.from_bytes(reports.read(8), "little")
        for _ in range(steps):
            assert reports.read(8), "the training has ended by itself"
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return first


@pytest.mark.slow
def test_killed_at_a_hundred_random_moments(tmp_path: Path, reference: Reference) -> None:
    """Every start finds what the one before has saved, and the end is that of one that was not."""
    draw, folder = random.Random(0), tmp_path / "killed"
    begun = [killed_after(folder, draw.randrange(4), 0.02 * draw.random()) for _ in range(100)]
    assert begun == sorted(begun) and len(set(begun)) > 20
    resumed = Training(folder)
    resumed.run(until := resumed.step + 3)
    whole = Training(tmp_path / "whole")
    whole.run(until, every=until)
    assert resumed.bits() == whole.bits()
    resumed.checkpoints.close()
    whole.checkpoints.close()


# ---- damage


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_is_found(tmp_path: Path, seed: int) -> None:
    for _ in range(3):
        count_on(tmp_path, 1)
    draw = random.Random(seed)
    kind = "*.json" if seed % 2 else "*.safetensors"
    victim = max(tmp_path.glob(kind))  # of the last checkpoint
    content = bytearray(victim.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    victim.write_bytes(content)
    counter = Counter()
    with (
        pytest.warns(CheckpointWarning, match="damaged|not used"),
        Checkpoints(tmp_path, counter=counter) as checkpoints,
    ):
        assert checkpoints.resume() == 2
        assert counter.value.tolist() == [2.0] * 3
        # The same tensors as in the damaged file: they must not be looked for there.
        counter.value = counter.value + 1
        checkpoints.save(3)
    with Checkpoints(tmp_path, counter=counter) as checkpoints:
        assert checkpoints.resume() == 3


def test_all_damaged(tmp_path: Path) -> None:
    count_on(tmp_path, 1)
    for text in tmp_path.glob("*.json"):
        text.write_text("{}")
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(BadFile, match=r"no checkpoint in .* is whole"),
        Checkpoints(tmp_path, counter=Counter()) as checkpoints,
    ):
        checkpoints.resume()


def test_a_text_names_no_other_files(tmp_path: Path) -> None:
    count_on(tmp_path, 1)
    (text,) = tmp_path.glob("*.json")
    body = text.read_text().partition("\n")[2].replace("step-00000001-", "../../etc/x-")
    text.write_text(f"{checkpoint_files.digest(body)}\n{body}")
    with pytest.raises(BadFile, match="is damaged"):
        checkpoint_files.read(tmp_path, 1)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Files may not grow beyond a limit: writing ends as on a full disk, with an OSError."""
    count_on(tmp_path, 2)
    counter = Counter()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.warns(CheckpointWarning, match="was not written"):
        checkpoints = Checkpoints(tmp_path, counter=counter)
        checkpoints.resume()
        counter.value = counter.value + 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            checkpoints.save(3)
            checkpoints._join()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".step")]
        assert checkpoint_files.steps(tmp_path) == [2, 1]
        counter.value = counter.value + 1
        checkpoints.save(4)  # there is room again
        checkpoints.close()
    with Checkpoints(tmp_path, counter=counter) as checkpoints:
        assert checkpoints.resume() == 4
    assert counter.value.tolist() == [4.0] * 3


# ---- the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpoints(tmp_path, counter=(counter := Counter())) as checkpoints:
        for step in (1, 2):
            counter.value = counter.value + 1
            checkpoints.save(step, loss=0.25)
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "loss 0.25" in capsys.readouterr().out
    assert main(["checkpoint", "show", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "step 2" in printed and "parts.counter.value" in printed
    assert main(["checkpoint", "diff", str(tmp_path), "1", "2"]) == 0
    printed = capsys.readouterr().out
    assert "parts.counter.value: 3 of 3 elements differ, by up to 1" in printed
    assert "same: " not in printed
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    content = bytearray((file := max(tmp_path.glob("*.safetensors"))).read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    assert "is damaged" in capsys.readouterr().out
    assert main(["checkpoint", "show", str(tmp_path), "9"]) != 0
    assert main(["checkpoint", "ls", str(tmp_path / "none")]) != 0
