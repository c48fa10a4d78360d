"""deduplicate_constants: copies share one tensor; what differs in any bit or in its quantization does not."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from passes.graphs import applied, assert_equal, constant, make, q

from qconvert import Op, Tensor
from qconvert.graph import Array


def sums(*constants: Tensor) -> tuple[list[Op], str]:
    """x + each constant, one output each."""
    return [Op("Add", ("x", c.name), (f"y{i}",)) for i, c in enumerate(constants)], " ".join(f"y{i}" for i in range(len(constants)))


def count(*arrays: Array) -> int:
    """How many of some constants are left."""
    listed = [constant(f"c{i}", array) for i, array in enumerate(arrays)]
    ops = [Op("Identity", (c.name,), (f"y{i}",)) for i, c in enumerate(listed)]
    graph = make(
        ops, [replace(t, name=f"y{i}", data=None) for i, t in enumerate(listed)] + listed, "", " ".join(f"y{i}" for i in range(len(listed)))
    )
    return sum(t.is_constant for t in applied(graph, "deduplicate_constants")[0].tensors.values())


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_copies_become_one_and_the_outputs_stay() -> None:
    data = np.random.default_rng(0).normal(0, 1, (40, 30)).astype(np.float32)
    near = data.copy()
    near[-1, -1] += 1
    listed = [constant("a", data), constant("b", data.copy()), constant("c", near), constant("d", np.asfortranarray(data))]
    ops, names = sums(*listed)
    graph = make(ops, [Tensor("x", "float32", (40, 30)), *listed], "x", names)
    changed, notes = applied(graph, "deduplicate_constants")
    assert {t.name for t in changed.constants()} == {"a", "c"}
    assert notes == ("2 constants (9,600 bytes) share the data of equal ones",)
    assert_equal(graph, changed, {"x": data[::-1].copy()})


def test_equal_means_every_bit() -> None:
    zero = np.zeros(3, np.float32)
    assert count(zero, zero.copy(), -zero) == 2
    assert count(zero, zero.reshape(1, 3), zero.view(np.int32)) == 3
    assert count(np.full(2, np.nan, np.float32), np.full(2, np.nan, np.float32)) == 1
    nibbles = np.array([1, 2], np.int8).astype(ml_dtypes.int4)
    assert count(nibbles, nibbles.copy(), np.array([1, 3], np.int8).astype(ml_dtypes.int4)) == 2
    words = np.array([b"one", b"two"], object)
    assert count(words, words.copy(), words[::-1]) == 2


@pytest.mark.onnxruntime
def test_quantizations_must_agree_and_outputs_keep_their_own() -> None:
    data = np.int8([1, 2, 3])
    listed = [
        constant("a", data, q(0.5)),
        constant("b", data.copy(), q(0.25)),
        constant("c", data.copy(), q(0.5)),
        constant("d", data.copy(), q(0.5)),
    ]
    ops = [Op("Dequantize", (c.name,), (f"y{i}",)) for i, c in enumerate(listed)]
    graph = make(ops, listed, "", "y0 y1 y2 y3 d")
    changed, _ = applied(graph, "deduplicate_constants")
    assert {t.name for t in changed.constants()} == {"a", "b", "d"}
    assert_equal(graph, changed, {})
