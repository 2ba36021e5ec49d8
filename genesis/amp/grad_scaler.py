"""`GradScaler`: float16 training without vanishing gradients.

Gradients below 6e-8 are 0 in float16. Multiplying the loss by a large number moves them up, and
dividing the gradients of the parameters (which are float32) by it makes them right again. If the
number is too large some gradient overflows: then the step is left out and the number halved. After
many good steps it is doubled.

All of this is done on arrays. A step that is left out is computed, and `where` keeps what was there
before. So nothing waits for a number, and a whole training step can be one recorded program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.autograd import no_grad
from genesis.ir.dtype import float32, int64
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Optimizer
from genesis.tensor.tensor import Tensor


class GradScaler:
    """Scales losses and unscales gradients, by a number that finds its own size.

    ::

        with autocast("cpu", float16):
            loss = loss_of(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)                    # only to look at or clip gradients
        scaler.step(optimizer)
        scaler.update()
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if device is not None and not isinstance(device, str):
            raise TypeError(f"GradScaler: device is a text such as 'cpu', not {device!r}")
        if not init_scale > 0:
            raise ValueError(f"GradScaler: init_scale must be positive, not {init_scale}")
        if not growth_factor > 1:
            raise ValueError(f"GradScaler: growth_factor must be above 1, not {growth_factor}")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"GradScaler: backoff_factor is between 0 and 1, not {backoff_factor}")
        if growth_interval < 1:
            raise ValueError(f"GradScaler: growth_interval must be positive, not {growth_interval}")
        self.enabled = enabled
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self._scale = nd.array(float(init_scale), float32, device)
        self._good_steps = nd.array(0, int64, device)  # since the scale was changed
        self._overflows: dict[Optimizer, NDArray] = {}  # of optimizers unscaled since `update`
        self._stepped: set[Optimizer] = set()

    def scale(self, outputs: Any) -> Any:
        """A loss times the scale, or a list or tuple of losses."""
        if not self.enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * Tensor(self._scale)
        if isinstance(outputs, Sequence) and not isinstance(outputs, str):
            return type(outputs)(map(self.scale, outputs))  # type: ignore[call-arg]
        raise TypeError(f"scale: expected a tensor or several, not {type(outputs).__name__}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale.

        `step` does it where it has not been done. Do it before to look at gradients, or clip them.
        """
        if not self.enabled:
            return
        if optimizer in self._overflows:
            raise RuntimeError("unscale_: it was called for this optimizer since the last update()")
        inverse = 1 / self._scale
        overflow = None
        for group in optimizer.param_groups:
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    continue
                if grad.dtype.itemsize < 4 and grad.dtype.is_float:
                    raise ValueError(
                        f"unscale_: a gradient is {grad.dtype}; keep parameters in float32 and let "
                        "autocast choose where half precision is used"
                    )
                with no_grad():
                    grad.array.assign(grad.array * inverse)
                bad = nd.logical_not(nd.all(nd.isfinite(grad.array)))
                overflow = bad if overflow is None else nd.logical_or(overflow, bad)
        if overflow is None:
            raise RuntimeError("unscale_: the optimizer's parameters have no gradients")
        self._overflows[optimizer] = overflow

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step, which changes nothing if a gradient has overflowed."""
        if not self.enabled:
            optimizer.step()
            return
        if optimizer in self._stepped:
            raise RuntimeError("step: it was called for this optimizer since the last update()")
        if optimizer not in self._overflows:
            self.unscale_(optimizer)
        overflow = self._overflows[optimizer]
        before = optimizer.written()
        with no_grad():
            kept = {key: nd.array(x) for key, x in before.items()}
            optimizer.step()
            done: set[int] = set()
            for key, x in optimizer.written().items():
                if id(x) not in done:
                    done.add(id(x))
                    x.assign(nd.where(overflow, kept[key], x))
        self._stepped.add(optimizer)

    def update(self, new_scale: float | None = None) -> None:
        """Make the scale smaller after an overflow, and larger after many good steps.

        With `new_scale` set it. Call this once per iteration, after all steps.
        """
        if not self.enabled:
            return
        overflows = list(self._overflows.values())
        self._overflows, self._stepped = {}, set()
        if new_scale is not None:
            self._scale.assign(nd.array(float(new_scale), float32, self._scale.device))
            return
        if not overflows:
            raise RuntimeError("update: there was no step() or unscale_() since the last update()")
        overflow = overflows[0]
        for another in overflows[1:]:
            overflow = nd.logical_or(overflow, another)
        scale, good = self._scale, self._good_steps + 1
        enough = good == self.growth_interval
        larger = scale * self.growth_factor
        grown = nd.where(nd.logical_and(enough, nd.isfinite(larger)), larger, scale)
        self._good_steps.assign(nd.where(nd.logical_or(overflow, enough), 0, good))
        self._scale.assign(nd.where(overflow, scale * self.backoff_factor, grown))

    def get_scale(self) -> float:
        """The scale, as a number."""
        return float(self._scale.item()) if self.enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self.enabled

    def state_dict(self) -> dict[str, Any]:
        """Scale and settings; empty if not enabled."""
        if not self.enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": int(self._good_steps.item()),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        if not self.enabled:
            return
        if not state_dict:
            raise RuntimeError("load_state_dict: the state is empty; the scaler was not enabled")
        self.growth_factor = state_dict["growth_factor"]
        self.backoff_factor = state_dict["backoff_factor"]
        self.growth_interval = state_dict["growth_interval"]
        self._scale.assign(nd.array(float(state_dict["scale"]), float32, self._scale.device))
        self._good_steps.assign(nd.array(int(state_dict["_growth_tracker"]), int64))
