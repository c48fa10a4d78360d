"""int32_bias_to_float and back: equal up to 24 bits, and the note counts what is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from passes.graphs import applied, assert_equal, constant, quantized_conv, random_integers

from qconvert.graph import Graph

SCALES = (0.02, 0.004, 0.013, 0.0005)


def with_bias(graph: Graph, *values: int) -> Graph:
    return replace(graph, tensors={**graph.tensors, "b": constant("b", np.array(values, np.int32), graph["b"].quantization)})


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_small_integers_are_exact_both_ways() -> None:
    graph = quantized_conv(scales=SCALES)
    changed, notes = applied(graph, "int32_bias_to_float")
    assert (changed["b"].dtype, changed["b"].quantization) == ("float32", None)
    assert notes == ("1 bias of 4 values is float32; all of them round to the same integers",)
    feeds = {"x": random_integers((1, 3, 5, 5), "int8")}
    assert_equal(graph, changed, feeds)
    back, (note,) = applied(changed, "float_bias_to_int32")
    assert back["b"] == graph["b"]
    assert note == "1 bias of 4 values is int32, equal as float32"


def test_large_integers_are_counted() -> None:
    values = (2**30 + 1, 2**24 + 1, 2**24, -77)
    graph = with_bias(quantized_conv(), *values)
    changed, (note,) = applied(graph, "int32_bias_to_float")
    scale = graph["b"].quantization.scale[0]  # type: ignore[union-attr]
    exact = [int(v) * float(scale) for v in values]
    assert np.array_equal(changed["b"].data, np.float32(exact))  # type: ignore[arg-type]
    lost = sum(round(float(np.float32(e)) / float(scale)) != v for e, v in zip(exact, values, strict=True))
    assert lost >= 1 and note.endswith(f"; {lost} of them round to another integer")


def test_a_bias_with_another_reader_keeps_its_integers_there() -> None:
    graph = quantized_conv()
    shown = replace(graph, outputs=("y", "b"))
    changed, _ = applied(shown, "int32_bias_to_float")
    assert changed["b"] == graph["b"]
    assert changed.ops[0].inputs == ("x", "w", "b/float32")


def test_a_bias_that_two_operators_read_keeps_its_name() -> None:
    graph = quantized_conv()
    second = replace(graph.ops[0], outputs=("z",))
    both = graph.evolve(tensors=[replace(graph["y"], name="z")], ops=[*graph.ops, second], outputs=("y", "z"))
    changed, _ = applied(both, "int32_bias_to_float")
    assert [op.inputs[2] for op in changed.ops] == ["b", "b"]
    assert changed["b"].dtype == "float32" and "b/float32" not in changed.tensors
    back, _ = applied(changed, "float_bias_to_int32")
    assert [op.inputs[2] for op in back.ops] == ["b", "b"] and back["b"] == graph["b"]
