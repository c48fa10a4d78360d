"""What pytest finds where qconvert is installed: the fixture `sample_graph`, which gives each graph of qconvert.testing.sample_graphs()."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qconvert.graph import Graph


@pytest.fixture(params=["convolutions", "convolutions_uint8", "dense", "moves", "pairs", "real"])
def sample_graph(request: pytest.FixtureRequest) -> Graph:
    """A small graph; a test that takes it runs for each."""
    from qconvert.testing import sample_graphs

    return sample_graphs()[request.param]
