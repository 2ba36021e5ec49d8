"""The same as `tests.interpreted_cuda` for AMD's GPUs.

TRITON_INTERPRET=1 pytest -p tests.interpreted_hip --device hip tests/ndarray/test_scatter.py
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_hip import FakeHIP
from tests.interpreted_cuda import install


def pytest_configure(config: Any) -> None:
    install(pytest.MonkeyPatch(), FakeHIP)
