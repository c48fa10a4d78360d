"""Each field of a target that demands something: what it says in words, what breaks it, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from passes.graphs import constant, make, q, quantized_conv

from qconvert import Graph, Op, Quantization, Target, Tensor
from qconvert.kernels import Kernel, Kernels
from qconvert.plugins import Storage, target_named
from qconvert.plugins.abilities import Verdict
from qconvert.plugins.rules import DEMANDS
from qconvert.targets.audit import violations


def target(**fields: Any) -> Target:
    return Target("mine", "onnx", "made up", **fields)


def conv(**weights: Any) -> Graph:
    """int8 data at 0.05 with zero point 3, weights at 0.02, a result with zero point 5."""
    graph = quantized_conv()
    return graph.evolve(tensors=[replace(graph["w"], **weights)]) if weights else graph


def pair(kind: str, scales: tuple[float, float, float], dtypes: tuple[str, str, str] = ("int8",) * 3) -> Graph:
    quantizations = [None if dtype == "float32" else q(scale) for scale, dtype in zip(scales, dtypes, strict=True)]
    tensors = [
        Tensor(name, dtype, (1, 4), None, quantization) for name, dtype, quantization in zip("aby", dtypes, quantizations, strict=True)
    ]
    return make([Op(kind, ("a", "b"), ("y",))], tensors, "a b", "y")


def tanh(scale: float, point: int = 0) -> Graph:
    tensors = [Tensor("x", "int8", (1, 4), None, q(0.1)), Tensor("y", "int8", (1, 4), None, q(scale, point))]
    return make([Op("Tanh", ("x",), ("y",))], tensors, "x", "y")


def demanding(field: str, value: Any) -> Target:
    """A target of one demand: a field of its storage, or rows of kernels."""
    return target(kernels=value) if field == "kernels" else target(storage=Storage(**{field: value}))


def rows(kernel: Kernel) -> Kernels:
    """One row that demands something, and kernels for everything."""
    return Kernels((kernel, Kernel()))


BOTH = {"int8": ("int8", "int4"), "uint8": ("uint8",), "int16": ("int8", "int4")}
BIAS = {"int8": ("int32",), "int16": ("int32", "int64")}
#: The field, its value, the words of the rule, a graph that breaks it and what is said of it, and one that does not.
CASES: list[tuple[str, Any, str, Callable[[], Graph], str, Callable[[], Graph]]] = [
    ("activation_dtypes", ("uint8", "int16"), "activations are uint8 or int16", conv, "'x' is int8", lambda: quantized_conv(dtype="uint8")),
    ("activation_granularity", "per_tensor", "activations have one scale for the whole tensor",
     lambda: per_axis_pair(), "'a' has 4 scales", lambda: pair("Add", (1, 1, 1))),
    ("symmetric_activations", ("int8",), "int8 activations have the zero point 0", conv, "'x' has the zero point 3",
     lambda: pair("Add", (1, 2, 3))),
    ("one_type", True, "the quantized data of an operator have one type", lambda: pair("Add", (1, 1, 1), ("int8", "int16", "int8")),
     "'b' is int16, while 'a' is int8", conv),
    ("explicit_conversions", True, "only Quantize and Dequantize convert between float and quantized data",
     lambda: pair("Add", (1, 1, 1), ("int8", "float32", "int8")), "'b' is float32 next to quantized data", conv),
    ("weight_dtypes", BOTH, "weights are int8 (or int4) for int8 and int16 data, uint8 for uint8 data",
     lambda: quantized_conv(weight_dtype="uint8"), "'w' is uint8 for data of int8", conv),
    ("symmetric_weights", True, "signed weights have the zero point 0", lambda: conv(quantization=q(0.02, 7)), "'w' has the zero point 7",
     lambda: quantized_conv(weight_dtype="uint8")),
    ("weight_granularity", "per_tensor", "weights have one scale for the whole tensor", lambda: quantized_conv(scales=(1, 2, 3, 4)),
     "'w' has 4 scales", conv),
    ("weight_granularity", "per_axis", "weights have one scale, or one for each output channel",
     lambda: conv(quantization=Quantization.per_axis([1, 2, 3], 1)), "'w' has scales along axis 1",
     lambda: quantized_conv(scales=(1, 2, 3, 4))),
    ("weight_granularity", "per_axis_signed", "weights have one scale, or one for each output channel if they are signed",
     lambda: quantized_conv(weight_dtype="uint8", scales=(1, 2, 3, 4)), "'w' is uint8 with 4 scales",
     lambda: quantized_conv(scales=(1, 2, 3, 4))),
    ("quant_ranges", {"int8": (-100, 100)}, "weights lie within -100 to 100 (int8)", conv, "'w' goes from -127 to 127",
     lambda: conv(data=np.clip(quantized_conv()["w"].data, -100, 100))),
    ("bias_dtypes", BIAS, "a bias is int32 (for int16 data also int64) at input scale * weight scale with zero point 0",
     lambda: conv(quantization=q(0.03)), "'b' has the scale 0.001, not 0.0015", conv),
    ("power_of_two_scales", True, "scales are powers of two", lambda: pair("Add", (0.5, 0.75, 4)), "'b' has the scale 0.75",
     lambda: pair("Add", (0.5, 0.25, 4))),
    ("kernels", rows(Kernel(("Tanh",), result={"int8": (1 / 128, 0)})),
     "the results of Tanh have the scale and zero point that their kernels fix",
     lambda: tanh(1 / 64), "'y' has scale 0.015625 and zero point 0, not 0.0078125 and 0", lambda: tanh(1 / 128)),
    ("kernels", rows(Kernel(("Add", "Mul"), ("int8",), one_quantization="all")), "Add and Mul have one scale and zero point on all sides",
     lambda: pair("Add", (1, 1, 2)), "'y' has another scale or zero point than 'a'", lambda: pair("Sub", (1, 2, 3))),
    ("kernels", rows(Kernel(("Add",), ("int8",), one_quantization="data")), "Add has one scale and zero point on all operands",
     lambda: pair("Add", (1, 3, 2)), "'b' has another scale or zero point than 'a'", lambda: pair("Add", (1, 1, 2))),
]  # fmt: skip


def per_axis_pair() -> Graph:
    tensors = [Tensor(name, "int8", (1, 4), None, q(1.0)) for name in "by"]
    split = Tensor("a", "int8", (1, 4), None, Quantization.per_axis([1, 2, 3, 4], 1))
    return make([Op("Add", ("a", "b"), ("y",))], [split, *tensors], "a b", "y")


@pytest.mark.parametrize(("field", "value", "rule", "broken", "said", "sound"), CASES, ids=[f"{case[0]}-{case[2]}"[:40] for case in CASES])
def test_a_demand(field: str, value: Any, rule: str, broken: Callable[[], Graph], said: str, sound: Callable[[], Graph]) -> None:
    mine = demanding(field, value)
    found = violations(broken(), mine)
    assert found and {item.rule for item in found} == {rule}
    assert said in found[0].where and found[0].remedy
    graph = broken()
    verdict = mine.judge(graph, graph.ops[0])
    assert (verdict.runs, verdict.rule, verdict.remedy) == ("refused", rule, found[0].remedy)
    assert violations(sound(), mine) == () == violations(broken(), target())


def test_every_demand_is_broken_once() -> None:
    broken = {demand.name for demand in DEMANDS for case in CASES if demand.is_made(demanding(*case[:2]))}
    assert broken == {demand.name for demand in DEMANDS}


def test_where_operators_run() -> None:
    """The words are those of the audit; the shorter ones those of the pass isolate_float."""
    table = target(kernels=Kernels((Kernel(("Add",), ("uint8",)), Kernel(("Conv",), ("int8",)))))
    assert judged(table, conv()) == Verdict("integers", "integer kernel")
    assert judged(target(kernels=Kernels().without("Add")), pair("Mul", (1, 1, 1))).runs == "integers"
    found = judged(table, pair("Add", (1, 1, 1)))
    assert found.rule == "mine has no integer kernel for int8 data: it runs in float between Dequantize and Quantize"
    assert (found.runs, found.isolated_for, found.remedy) == ("floats", "mine has no integer kernel for int8 data", "pass isolate_float")
    found = judged(table, pair("Mul", (1, 1, 1)))
    assert found.rule == "mine has no integer kernel for Mul: it runs in float between Dequantize and Quantize"
    found = judged(table, pair("Add", (1, 1, 1), ("uint8", "float32", "uint8")))
    assert (found.rule, found.isolated_for) == ("part of its data is float", "some of their data have no scale")
    found = judged(table, pair("Add", (1, 1, 1), ("uint8", "uint8", "float32")))
    assert found.isolated_for == "their results have no scale"
    relu = make([Op("Relu", ("x",), ("y",))], [Tensor(n, "int16", (4,), None, q(0.5)) for n in "xy"], "x", "y")
    other = table.derive(name="other", kernels=table.kernels.with_rows(Kernel(("Relu",), runs="stored")))
    assert judged(other, relu) == Verdict("integers", "clips stored integers")
    assert judged(table, relu).runs == "floats"


def test_without_floats_an_operator_on_real_values_is_refused() -> None:
    strict = target(floats=False, kernels=Kernels((Kernel(("Add",), ("int8",)),)))
    for graph, said in (
        (pair("Add", (1, 1, 1), ("float32",) * 3), "its data are float"),
        (pair("Mul", (1, 1, 1)), "mine has no integer kernel"),
        (pair("Add", (1, 1, 1), ("int8", "float32", "int8")), "some of their data have no scale"),
    ):
        (found,) = violations(graph, strict)
        assert found.rule == "mine runs operators on integers alone" and said in found.where
    assert violations(pair("Add", (1, 1, 1)), strict) == ()
    weights = constant("w", np.ones((2, 2), np.float32))
    quantize = make([Op("Quantize", ("w",), ("y",))], [weights, Tensor("y", "int8", (2, 2), None, q(0.5))], "", "y")
    assert violations(quantize, strict) == ()


def judged(chosen: Target, graph: Graph) -> Verdict:
    return chosen.judge(graph, graph.ops[0], final=False)


@pytest.mark.parametrize(
    ("name", "property", "is_ensured"),
    [
        ("tflite", "one rounding", True),
        ("tflite-micro", "one rounding", False),
        ("ort-arm", "no states", True),
        ("tflite", "no states", False),
    ],
)
def test_what_the_passes_of_a_target_ensure(name: str, property: str, is_ensured: bool) -> None:
    assert target_named(name).ensures(property) is is_ensured
