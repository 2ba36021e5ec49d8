"""Programs that tests run in a process of their own."""

import os
import subprocess
import sys


def run(code: str, **environment: str) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
