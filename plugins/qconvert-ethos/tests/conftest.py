"""The plugin, whether it is installed or not, and the repository's models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import qconvert_ethos

from qconvert.plugin import list_plugins, temporary_plugin


@pytest.fixture(autouse=True, scope="session")
def there() -> Iterator[None]:
    if "ethos-u" in {item.name for item in list_plugins()}:
        yield
    else:
        with temporary_plugin(qconvert_ethos, "ethos-u"):
            yield


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parents[3] / "fixtures"
