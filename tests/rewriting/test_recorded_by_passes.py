"""What passes record of tensors: on random graphs, the values of both graphs are what the correspondence says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import random_graphs as recipes
from random_graphs import random_graph

from qconvert import Graph
from qconvert.arithmetic import dequantize, quantize
from qconvert.conversion.verifying import convert_feed, random_inputs
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.graph.correspondence import Relation
from qconvert.passes import BUILTIN
from qconvert.plugins import target_named

#: Target and options of passes that keep float values or stored integers, and what they record at least once, next to tensors that stay.
RECORDED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "store_activations": ("tflite", {}, ()),
    "signed_to_unsigned": ("tflite", {}, ()),
    "unsigned_to_signed": ("tflite", {}, ()),
    "float_io": ("tflite", {"io": "float"}, ("renamed",)),
    "integer_io": ("tflite", {"io": "integer"}, ("renamed",)),
    "per_tensor_to_per_axis": ("tflite", {}, ()),
    "int32_bias_to_float": ("tflite", {}, ()),
    "shift_to_symmetric": ("tensorrt", {"scope": "all"}, ("shifted",)),
}
SEEDS = 40


def every_value(graph: Graph, feed: dict[str, Array]) -> dict[str, Array]:
    """Return the stored values of all tensors of a graph."""
    names = dict.fromkeys((*graph.outputs, *(name for op in graph.ops for name in op.outputs if name), *graph.inputs))
    values = evaluate(replace(graph, outputs=tuple(names)), feed)
    return {**values, **{tensor.name: tensor.data for tensor in graph.constants() if tensor.data is not None}}


def real(graph: Graph, name: str, stored: Array) -> Array:
    quantization = graph[name].quantization
    return stored.astype(np.float64) if quantization is None else dequantize(stored, quantization)


@pytest.mark.parametrize("name", RECORDED)
def test_values_are_where_the_correspondence_says(name: str) -> None:
    target, options, expected = RECORDED[name]
    found: Counter[str] = Counter()
    for seed in range(SEEDS):
        before = random_graph(seed, (recipes.conv, recipes.gemm, recipes.shared, recipes.convert))
        after, _ = BUILTIN[name].run(before, target_named(target), **options)
        feed = random_inputs(before, np.random.default_rng(seed))
        old, new = every_value(before, feed), every_value(after, convert_feed(before, after, feed))
        for tensor, values in old.items():
            relation = after.correspondence.get(tensor, Relation(tensor))
            if relation.tensor not in after:
                continue
            told = f"{tensor} of seed {seed}: {relation}, {before[tensor]} -> {after[relation.tensor]}"
            result = new[relation.tensor]
            if relation.shift is not None:  # but for ties, which a shift of float values may round to the other side
                assert np.abs(result.astype(np.int64) - values - relation.shift).max(initial=0) <= 1, told
                found["shifted"] += bool(values.size)
                continue
            was, now = real(before, tensor, values), real(after, relation.tensor, result)
            quantization, step = after[relation.tensor].quantization, 0.0
            if quantization is not None:
                was = dequantize(quantize(was, quantization, after[relation.tensor].dtype), quantization)
                step = float(quantization.scale.max()) if name == "shift_to_symmetric" else 0.0
            assert np.allclose(was, now, rtol=1e-6, atol=1e-6 + step, equal_nan=True), told
            found["renamed"] += relation.tensor != tensor
    assert all(found[item] for item in expected), found
