"""Settings of all tests."""

import gc
import os

import pytest
from hypothesis import settings

# Deadlines are off, as how long an example takes says something of the machine. The suite tries the same examples in each run, so that
# what passed once passes again; `make fuzz` tries new ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("new examples", deadline=None)
settings.load_profile("new examples" if os.environ.get("QCONVERT_NEW_EXAMPLES") else "suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take half a minute each run with `make slow`."""
    if not os.environ.get("QCONVERT_SLOW"):
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="takes half a minute: make slow runs it"))


def pytest_collection_finish() -> None:
    """Fifteen thousand tests are millions of objects that stay: a collection of garbage, of which each conversion asks for some, need not
    look at them again."""
    gc.collect()
    gc.freeze()
