"""Every registered pass on random graphs: valid graphs, and the evaluator's outputs equal, or changed by no more than the pass declares.

QCONVERT_EXAMPLES=1000 tries more graphs than the suite does.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
import random_graphs as recipes
from random_graphs import random_graph

from qconvert import Graph, Option, Pass, Target
from qconvert.arithmetic import dequantize
from qconvert.conversion.verifying import change, convert_feed, random_inputs
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.graph.metadata import TRANSPOSED
from qconvert.graph.summary import format_graph
from qconvert.kernels import Kernel, Kernels
from qconvert.passes import BUILTIN
from qconvert.plugins import Storage, name_changes, target_named
from qconvert.rules.validation import validate

EXAMPLES = int(os.environ.get("QCONVERT_EXAMPLES", "40"))
STRICT = Target(
    "strict", "onnx", "demands all that data can demand", layout="channels_first",
    storage=Storage(activations="int8", weights="int8", symmetric_activations=("int8", "int16")),
    kernels=Kernels((
        Kernel(("Softmax", "Sigmoid"), runs="nothing"), Kernel(("Add",), ("int8", "int16"), one_quantization="data"),
        Kernel(("Mul", "Concat"), ("int8",), one_quantization="all"), Kernel(("Max",), ("int8", "uint8"), one_quantization="all"),
        Kernel(("Tanh",), result={"int8": (1 / 128, 0)}), Kernel(),
    )),
)  # fmt: skip
TARGETS = [*(target_named(name) for name in ("ort-x86", "ort-arm", "tflite", "tflite-same", "tflite-uint8", "tflite-micro")), STRICT]


def real(graph: Graph, name: str, values: Array) -> Array:
    q = graph[name].quantization
    return values if q is None else dequantize(values, q).astype(np.float32)


#: Passes that multiply factors in another order: exact as real numbers, in float32 but for its last bits.
REORDER = ("fuse_dynamic",)


def is_same(was: Array, now: Array, ambiguous: bool, exactly: bool = True) -> bool:
    """Bit for bit, or for float32 but for the last bits; in the other layout where the shape says so, or does not say anything."""
    forms = [now] if was.shape == now.shape else []
    if now.ndim == 4 and (ambiguous or not forms):
        forms += [now.transpose(turn) for turn in ((0, 3, 1, 2), (0, 2, 3, 1))]
    if not exactly and was.dtype.kind == "f":
        return any(np.allclose(was, form, rtol=2.0**-21, atol=2.0**-21 * np.abs(was).max(initial=0), equal_nan=True) for form in forms)
    return any(np.array_equal(was, form, equal_nan=was.dtype.kind == "f") for form in forms)


#: Passes with nothing to do here: they read custom operators alone, loops, what trained models have, metadata, sizes with names, or
#: transposed convolutions, numbers after real convolutions over one dimension, or
#: convolutions of many results.
IDLE = (
    "apply_encodings",
    "carry_custom",
    "compute_constants",
    "crop_transposed",
    "dense_weights",
    "fold_qat_batch_norm",
    "fuse_integer_products",
    "fuse_recurrence",
    "io_to_states",
    "join_wide_weights",
    "lift_states",
    "merge_pixels",
    "per_axis_in_float",
    "real_recurrence",
    "restate_attributes",
    "restore_zero_points",
    "separate_pads",
    "settle_sizes",
    "split_pixels",
    "split_wide_weights",
    "spread_addends",
    "states_to_io",
    "transposed_to_conv",
    "unroll_sequences",
)
#: What makes a pass have something to do more often.
FAVOURED = {
    "clip_before_quantize": (recipes.unary, recipes.unary, recipes.unary),
    "fold_batch_norm": (recipes.normalized, recipes.convert),
    "fuse_activation": (recipes.conv, recipes.relu),
    "dynamic_range": (recipes.hybrid,),
    "fuse_dynamic": (recipes.rounded,),
    "widen_float16": (recipes.narrow,),
    "fuse_functions": (recipes.gelu, recipes.convert),
    "fuse_dilation": (recipes.dilated,),
    "fuse_pad": (recipes.padded,),
    "integer_io": (recipes.convert,),
    "match_rounding": (recipes.pair,),
    "fold_constants": (recipes.dead,),
    "float_bias_to_int32": (recipes.conv, recipes.gemm),
    "guard_saturation": (recipes.conv, recipes.gemm, recipes.shared, recipes.tied),
    "requantize_to_fixed_point": (recipes.conv, recipes.gemm, recipes.pair, recipes.convert),
    "decompose_weights": (recipes.weighted, recipes.convert),
    "movement_in_float": (recipes.few_bits,),
    "sums_in_float": (recipes.rounded,),
    "affine_activations": (recipes.relu, recipes.conv),
    "change_bits": (recipes.conv, recipes.gemm, recipes.shared, recipes.tied),
    "google_scales": (recipes.conv, recipes.gemm, recipes.shared, recipes.tied),
    "narrow_range": (recipes.lowest,),
    "power_of_two": (recipes.conv, recipes.gemm, recipes.shared, recipes.tied),
    "reduced_range": (recipes.conv, recipes.gemm, recipes.shared, recipes.tied),
    "symmetric_activations": (recipes.tied, recipes.conv, recipes.pair),
    "shift_to_symmetric": (recipes.conv, recipes.gemm, recipes.matmul, recipes.pair),
    "sparse_pairs": (recipes.convert, recipes.convert, recipes.conv, recipes.reshape),
    "store_activations": (recipes.shared, recipes.tied),
    "symmetric_weights": (recipes.conv, recipes.gemm, recipes.shared, recipes.tied),
    "per_axis_to_per_tensor": (recipes.conv, recipes.gemm, recipes.shared),
    "match_scales": (recipes.pair, recipes.concat, recipes.pool, recipes.unary),
    "matmul_to_gemm": (recipes.matmul,),
    "merge_reshapes": (recipes.reshape, recipes.squeeze),
    "quantize_operands": (recipes.pair, recipes.convert),
    "remove_redundant_requantize": (recipes.convert,),
    "unary_to_table": (recipes.gelu, recipes.gelu, recipes.convert),
    "widen_1d": (recipes.conv, recipes.pool),
}
#: The targets that ask a pass for something, where not all do.
ASKING = {
    "shift_to_symmetric": (target_named("tensorrt"), STRICT),
    "symmetric_activations": (STRICT,),
    "widen_float16": (target_named("tflite"), target_named("tflite-same")),
    "symmetric_weights": (STRICT, target_named("tflite"), target_named("tflite-uint8")),
    "guard_saturation": (target_named("ort-x86"), target_named("ort-arm")),
    "unary_to_table": (target_named("tflite"), target_named("tflite-same")),
}


@pytest.mark.property
@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_a_pass_keeps_what_it_declares(name: str) -> None:
    """As many graphs as the pass changes EXAMPLES of; one that finds little to do in random graphs has had enough after a while."""
    item, shares = BUILTIN[name], []
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(12 * EXAMPLES):
        seed = int(rng.integers(2**32))
        targets = ASKING.get(name, TARGETS)
        target = targets[int(rng.integers(len(targets)))]
        options = {option.name: _value(option, rng) for option in item.options if option.name != "no_float"}
        share = kept(item, seed, target, options)
        shares += [share] if share is not None else []
        if len(shares) >= EXAMPLES:
            break
    assert len(shares) >= EXAMPLES / 4 or name in IDLE, len(shares)
    # the quantizations of a few graphs are so far from their values that all of their integers are the limits
    if shares and not item.exact:
        assert item.within is not None and np.quantile(shares, 0.95) <= item.within


def _value(option: Option, rng: np.random.Generator) -> Any:
    values = [option.default, *option.choices, *([True] if option.type is bool else [])]
    return values[int(rng.integers(len(values)))]


def kept(item: Pass, seed: int, target: Target, options: dict[str, Any]) -> float | None:
    """Runs a pass on the graph of a seed and compares: the mean change of an output, or None if the pass had nothing to do."""
    before = random_graph(seed, FAVOURED.get(item.name, ()))
    after, notes = item.run(before, target, **options)
    if after is before:
        return None
    validate(after)
    feed = random_inputs(before, np.random.default_rng(len(before.ops)))
    old, new = evaluate(before, feed), evaluate(after, convert_feed(before, after, feed))
    told = f"{item.name} on {seed} for {target.name} {options}: {notes}\n{format_graph(before)}\n->\n{format_graph(after)}"
    share, _ = change(before, after, old, new)
    assert not share or notes
    said = name_changes(notes, by=item.name, exact=item.exact)
    assert not (item.exact and item.within)
    if item.exact or (said and all(change.exact for change in said)):
        assert len(before.outputs) == len(after.outputs)
        for a, b in zip(before.outputs, after.outputs, strict=True):
            was, now = real(before, a, old[a]), real(after, b, new[b])
            assert is_same(was, now, b in after.metadata.get(TRANSPOSED, ""), item.name not in REORDER), f"{a} of {told}\n{was}\n{now}"
    return share


@pytest.mark.parametrize("seed", [67652528, 1926482243, 3970157241])
def test_real_values_of_a_coarse_quantization_are_measured_by_its_range(seed: int) -> None:
    """Outputs that are a few steps of 0.4 to 0.8: half a step is a tenth of the largest of them, and little of what the quantization
    holds."""
    share = kept(BUILTIN["sparse_pairs"], seed, target_named("ort-arm"), {"pairs": "sparse"})
    assert share is not None and 0 < share < 0.005


#: Passes between quantizations, which find nothing to do in what they leave.
SETTLED = (
    "affine_activations", "change_bits", "google_scales", "narrow_range", "per_axis_to_per_tensor", "per_tensor_to_per_axis",
    "power_of_two", "reduced_range", "symmetric_activations", "symmetric_weights",
)  # fmt: skip


@pytest.mark.parametrize("name", SETTLED)
def test_a_pass_between_quantizations_leaves_nothing_to_itself(name: str) -> None:
    item, changed = BUILTIN[name], 0
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    for _ in range(4 * EXAMPLES):
        seed = int(rng.integers(2**32))
        targets = ASKING.get(name, TARGETS)
        target = targets[int(rng.integers(len(targets)))]
        options = {option.name: _value(option, rng) for option in item.options}
        before = random_graph(seed, FAVOURED.get(name, ()))
        once, _ = item.run(before, target, **options)
        twice, notes = item.run(once, target, **options)
        assert twice is once or (twice.ops == once.ops and twice.tensors == once.tensors), (seed, target.name, options, notes)
        changed += once is not before
    assert changed >= EXAMPLES / 4


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_are_valid_and_run(seed: int) -> None:
    graph = random_graph(seed)
    outputs = evaluate(graph, random_inputs(graph, np.random.default_rng(0)))
    assert {name: value.shape for name, value in outputs.items()} == {name: graph[name].shape for name in graph.outputs}


def test_random_graphs_are_of_many_kinds() -> None:
    """Each recipe has to bring its operators, else passes are tried on less than it seems."""
    found = Counter(kind for seed in range(300) for kind in {op.kind for op in random_graph(seed).ops})
    assert len(found) >= 45
    assert min(found[kind] for kind in ("Conv", "Gemm", "MatMul", "Add", "Concat", "AveragePool", "Quantize", "Requantize")) >= 8
