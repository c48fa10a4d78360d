"""What test_workers has processes do, which import it by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def ended(item: int) -> int:
    """Ends its process the first time that the file named by the environment is not there."""
    mark = Path(os.environ["QCONVERT_TEST_MARK"])
    if item == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def always_ended(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item
