"""What the tests share: the plugin, the repository's models, and graphs that are written and read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import qconvert_ncnn

from qconvert.plugin import Graph, list_plugins, load, normalize, save, temporary_plugin


@pytest.fixture(autouse=True, scope="session")
def there() -> Iterator[None]:
    """The plugin, whether it is installed or not."""
    if "ncnn-net" in {item.name for item in list_plugins()}:
        yield
    else:
        with temporary_plugin(qconvert_ncnn, "ncnn-net"):
            yield


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parents[3] / "fixtures"


def written(graph: Graph, path: Path, target: str = "ncnn") -> tuple[Graph, Graph]:
    """A graph fitted to ncnn, and what is read of its file."""
    fitted, _ = normalize(graph, next(item for item in qconvert_ncnn.qconvert_targets() if item.name == target))
    save(fitted, path)
    return fitted, load(path)
