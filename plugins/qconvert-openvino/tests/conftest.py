"""What the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import qconvert_openvino

from qconvert.plugin import Graph, list_plugins, load, normalize, save, temporary_plugin


@pytest.fixture(autouse=True, scope="session")
def there() -> Iterator[None]:
    """The plugin, whether it is installed or not."""
    if "openvino" in {item.name for item in list_plugins()}:
        yield
    else:
        with temporary_plugin(qconvert_openvino, "openvino"):
            yield


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parents[3] / "fixtures"


def written(graph: Graph, path: Path) -> tuple[Graph, Graph]:
    """A graph fitted to OpenVINO, and what is read of its file."""
    target = next(iter(qconvert_openvino.qconvert_targets()))
    fitted, _ = normalize(graph, target)
    save(fitted, path)
    return fitted, load(path)
