"""The end of the process: autograd's threads have let go of Python before Python ends.

PyTorch runs a device's backward pass in a thread of its own, which drops the pass's last reference
after `backward()` has returned. That reference holds a Python object. If the interpreter is ending
by then, the thread can no longer take its lock, and C++ ends the process as a crash.
"""

from __future__ import annotations

import atexit
from typing import Any

import torch

from genesis.torch.device.contents import device_names


def register() -> None:
    """Let autograd's threads finish when the process ends."""
    atexit.register(_settle)


def _settle() -> None:
    """Wait until every device's thread has dropped all earlier backward passes.

    A thread takes up a pass only when it has let go of the one before. So it is enough to wait for
    one more. It goes to the engine directly: `torch.autograd` would attach a Python object to it.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    for index in range(len(device_names())):
        x = torch.empty((), device=f"genesis:{index}", requires_grad=True)
        y = x.view(())
        engine.run_backward(
            (y,),
            (torch.empty_like(y),),
            keep_graph=False,
            create_graph=False,
            inputs=(x,),
            allow_unreachable=False,
            accumulate_grad=False,
        )
