"""Every registered pass on random graphs: valid graphs, and the evaluator's outputs equal, or changed by no more than the pass declares.

QCONVERT_EXAMPLES=1000 tries more graphs than the suite does.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
import random_graphs as recipes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

from qconvert import Graph, Pass, Target
from qconvert.arithmetic import dequantize
from qconvert.conversion.verifying import change, followed, random_inputs
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.graph.printing import printed
from qconvert.graph.validation import validate
from qconvert.passes import BUILTIN
from qconvert.plugins import target_named

EXAMPLES = int(os.environ.get("QCONVERT_EXAMPLES", "40"))
STRICT = Target(
    "strict", "onnx", "demands all that data can demand", layout="channels_first", activations="int8", weights="int8",
    symmetric_activations=("int8", "int16"), forbidden=("Softmax", "Sigmoid"), equal_inputs={"Add": ("int8", "int16")},
    equal_scales={"Mul": ("int8",), "Concat": ("int8",), "Max": ("int8", "uint8")}, fixed_outputs={"Tanh": {"int8": (1 / 128, 0)}},
)  # fmt: skip
TARGETS = [*(target_named(name) for name in ("ort-x86", "ort-arm", "tflite", "tflite-uint8", "tflite-micro")), STRICT]


def real(graph: Graph, name: str, values: Array) -> Array:
    q = graph[name].quantization
    return values if q is None else dequantize(values, q).astype(np.float32)


def turned(values: Array, like: Array) -> Array:
    """The values in the other layout, if it is the layout that differs."""
    for turn in ((0, 3, 1, 2), (0, 2, 3, 1)):
        if values.shape != like.shape and values.ndim == 4 and values.transpose(turn).shape == like.shape:
            return values.transpose(turn)
    return values


#: What makes a pass have something to do more often.
FAVOURED = {
    "fold_batch_norm": (recipes.conv, recipes.normalization),
    "fuse_activation": (recipes.conv, recipes.relu),
    "fuse_gelu": (recipes.gelu, recipes.convert),
    "fuse_pad": (recipes.pad, recipes.conv),
    "integer_io": (recipes.convert,),
    "match_add": (recipes.pair,),
    "match_scales": (recipes.pair, recipes.concat, recipes.pool, recipes.unary),
    "matmul_to_gemm": (recipes.matmul,),
    "merge_reshapes": (recipes.reshape, recipes.squeeze),
    "quantize_operands": (recipes.pair, recipes.convert),
    "remove_redundant_requantize": (recipes.convert,),
    "widen_1d": (recipes.conv, recipes.pool),
}
SETTINGS = settings(
    deadline=None, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)  # fmt: skip
SEEDS = st.integers(0, 2**32 - 1)
#: How often each pass had something to do.
CHANGED: Counter[str] = Counter()


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_a_pass_keeps_what_it_declares(name: str) -> None:
    @settings(SETTINGS, max_examples=EXAMPLES)
    @given(seed=SEEDS, number=st.integers(0, len(TARGETS) - 1), data=st.data())
    def tried(seed: int, number: int, data: st.DataObject) -> None:
        item, target = BUILTIN[name], TARGETS[number]
        options = {
            option.name: data.draw(st.sampled_from([option.default, *option.choices, *([True] if option.type is bool else [])]))
            for option in item.options
            if option.name != "partial"
        }
        CHANGED[name] += keeps(item, random_graph(seed, FAVOURED.get(name, ())), target, options)

    tried()
    assert CHANGED[name] >= EXAMPLES / 10 or name == "restate_attributes", CHANGED[name]


def keeps(item: Pass, before: Graph, target: Target, options: dict[str, Any]) -> bool:
    """Runs a pass and compares; whether it had something to do."""
    after, notes = item.run(before, target, **options)
    if after is before:
        return False
    validate(after)
    feed = random_inputs(before, np.random.default_rng(len(before.ops)))
    old, new = evaluate(before, feed), evaluate(after, followed(before, after, feed))
    told = f"{item.name} for {target.name} {options}: {notes}\n{printed(before)}\n->\n{printed(after)}"
    if item.exact and not item.within:
        assert len(before.outputs) == len(after.outputs)
        for a, b in zip(before.outputs, after.outputs, strict=True):
            was = real(before, a, old[a])
            now = turned(real(after, b, new[b]), was)
            assert np.array_equal(was, now, equal_nan=was.dtype.kind == "f"), f"{a} of {told}\n{was}\n{now}"
    else:
        share, output = change(before, after, old, new)
        assert share <= (item.within or 0), f"{output} changes by {share}: {told}"
        assert not share or notes
    return True


@settings(SETTINGS, max_examples=60)
@given(seed=SEEDS)
def test_random_graphs_are_valid_and_run(seed: int) -> None:
    graph = random_graph(seed)
    outputs = evaluate(graph, random_inputs(graph, np.random.default_rng(0)))
    assert {name: value.shape for name, value in outputs.items()} == {name: graph[name].shape for name in graph.outputs}


def test_random_graphs_are_of_many_kinds() -> None:
    """Each recipe has to bring its operators, else passes are tried on less than it seems."""
    found = Counter(kind for seed in range(300) for kind in {op.kind for op in random_graph(seed).ops})
    assert len(found) >= 45
    assert min(found[kind] for kind in ("Conv", "Gemm", "MatMul", "Add", "Concat", "AveragePool", "Quantize", "Requantize")) >= 8
