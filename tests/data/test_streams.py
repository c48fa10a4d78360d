"""Samples of any source: arrays, lists, mappings, functions, iterators and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert import Graph, Preparation, Tensor
from qconvert.data.samples import Samples, batch_name
from qconvert.errors import OptionError


def graph_of(**shapes: tuple[int | str, ...]) -> Graph:
    return Graph("made", {name: Tensor(name, "float32", shape) for name, shape in shapes.items()}, (), (*shapes,), (*shapes,))


ONE, OPEN, TWO = graph_of(x=(1, 3)), graph_of(x=("N", 3)), graph_of(a=("N", 2), b=("N", 3))
DATA = np.arange(12, dtype=np.float32).reshape(4, 3)


def listed(samples: Samples) -> list[Any]:
    return [{name: value.tolist() for name, value in feed.items()} for feed in samples]


@pytest.mark.parametrize("graph", [ONE, OPEN])
@pytest.mark.parametrize(
    "data",
    [
        DATA,
        DATA[:, None],
        list(DATA),
        [DATA[:1], DATA[1:]],
        {"x": DATA},
        [{"x": row} for row in DATA],
        lambda: iter(DATA),
        lambda: DATA,
        DATA.astype(np.float64),
    ],
)
def test_every_source_gives_the_same(graph: Graph, data: Any) -> None:
    samples = Samples(graph, data)
    assert listed(samples) == [{"x": [row]} for row in DATA.tolist()] == listed(samples)
    assert listed(Samples(graph, data, 2)) == [{"x": [row]} for row in DATA.tolist()[:2]]


def test_files_of_an_open_batch_are_taken_apart(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", DATA)
    samples = Samples(OPEN, str(tmp_path))
    assert (samples.count, samples.is_sliced) == (4, True) and samples.where(2) == f"{tmp_path / 'a.npy'}[2]"
    assert [feed["x"].tolist() for feed in samples.part(1, 3)] == [[row] for row in DATA.tolist()[1:3]]


def test_several_inputs() -> None:
    a, b = np.ones((4, 2), np.float32), DATA
    expected = [{"a": [[1, 1]], "b": [row]} for row in b.tolist()]
    for data in ({"a": a, "b": b}, [(a, b)], [{"a": x, "b": y} for x, y in zip(a, b, strict=True)]):
        assert listed(Samples(TWO, data)) == expected
    with refused(OptionError, "input-missing", where="item 0 of the data", holds=("'b'",)):
        listed(Samples(TWO, [{"a": a}]))
    with refused(OptionError, "array-count", where="item 0 of the data", holds=(1, 2)):
        listed(Samples(TWO, [a]))
    with refused(OptionError, "sample-count", where="item 0 of the data", holds=(3, 4)):
        listed(Samples(TWO, [(a[:3], b)]))


def test_an_iterator_gives_its_samples_once() -> None:
    def rows() -> Iterator[Any]:
        yield from DATA

    samples = Samples(ONE, rows())
    assert len(listed(samples)) == 4
    with refused(OptionError, "iterator-exhausted"):
        listed(samples)


def test_no_sample_and_samples_that_do_not_fit() -> None:
    with refused(OptionError, "no-samples"):
        listed(Samples(ONE, []))
    with refused(OptionError, "samples-not-positive"):
        Samples(ONE, DATA, 0)
    with refused(OptionError, "shape-mismatch", holds=("(5,)", "'x'", "(1, 3)")) as caught:
        listed(Samples(ONE, [DATA[0], np.zeros(5, np.float32)]))
    assert caught.value.file == "item 1 of the data"
    with refused(OptionError, "data-not-from-files"):
        Samples(ONE, DATA, preparation=Preparation(mean=(1.0,)))


def test_the_batch_is_open_where_all_inputs_have_it_in_front() -> None:
    assert [batch_name(graph) for graph in (ONE, OPEN, TWO)] == ["", "N", "N"]
    assert batch_name(graph_of(a=("N", 2), b=("M", 2))) == "" == batch_name(graph_of(a=("N", "N")))
