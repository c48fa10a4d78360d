"""shift_to_symmetric on MatMul of two activations: products of integers, and sums next to them; TensorRT-RTX builds them on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes.graphs import applied, make, q

from qconvert import Graph, Op, Tensor
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.writer import build
from qconvert.plugins import target_named


def product(
    points: tuple[int, int, int | None], shapes: tuple[tuple[int | str, ...], tuple[int | str, ...]], dtype: str = "int8", **more: Any
) -> Graph:
    """A MatMul of two quantized inputs of real numbers; the zero points are of both and of the result, which is real without one."""
    tensors = [Tensor("x", "float32", shapes[0]), Tensor("z", "float32", shapes[1]),
               Tensor("a", dtype, None, None, q(0.05, points[0])), Tensor("b", dtype, None, None, q(0.03, points[1]))]  # fmt: skip
    ops = [Op("Quantize", ("x",), ("a",)), Op("Quantize", ("z",), ("b",)), Op("MatMul", ("a", "b"), ("c",), more)]
    if points[2] is not None:
        tensors.append(Tensor("c", dtype, None, None, q(0.4, points[2])))
        ops.append(Op("Dequantize", ("c",), ("y",)))
    return make(ops, tensors, "x z", "c" if points[2] is None else "y")


CASES = [
    ((3, -7, 5), ((2, 4, 6), (2, 6, 5)), {}),
    ((-128, 127, None), ((4, 6), (6, 5)), {}),
    ((3, 0, 5), ((2, 4, 6), (6, 5)), {}),
    ((0, 9, 0), ((1, 3, 4, 6), (1, 3, 5, 6)), {"trans_b": 1}),
    ((11, 9, -3), ((6, 4), (5, 6)), {"trans_a": 1, "trans_b": 1}),
    ((0, 0, 4), ((4, 6), (6, 5)), {}),
]


def feed(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: (rng.normal(size=graph[name].static_shape) * 2).astype(np.float32) for name in graph.inputs}


@pytest.mark.parametrize(("points", "shapes", "more"), CASES)
def test_a_product_computes_what_it_did_without_zero_points(points: Any, shapes: Any, more: Any) -> None:
    before = product(points, shapes, **more)
    after, _ = applied(before, "shift_to_symmetric", scope="all")
    (found,) = (op for op in after.ops if op.kind == "MatMul")
    sides = [after[name].quantization for name in found.inputs]
    assert all(quantization is not None and quantization.is_symmetric for quantization in sides)
    given = feed(before)
    was, now = (next(iter(evaluate(graph, given).values())) for graph in (before, after))
    step = 0.4 if points[2] is not None else 1e-4
    off = np.abs(was - now)
    assert off.max() <= step * 1.001 and (off > 1e-4).mean() <= 0.05  # a tie here and there


@pytest.mark.tensorrt
@pytest.mark.cross_section
@pytest.mark.parametrize(("points", "shapes", "more"), CASES)
def test_the_builder_runs_it_on_integers(points: Any, shapes: Any, more: Any) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    from qconvert.conversion.normalizing import normalize
    from qconvert.runtimes.tensorrt import Builder

    target = target_named("tensorrt")
    graph, _ = normalize(product(points, shapes, **more), target)
    assert {verdict.runs for op, verdict in target.verdicts(graph) if op.kind == "MatMul"} == {"integers"}
    builder = Builder()
    layers = builder.build(build(graph, 0, {}, numerics="fast", guards=False).SerializeToString()).layers
    builder.close()
    assert [layer.integer for layer in layers if layer.sums] == [True]


@pytest.mark.parametrize(
    "graph",
    [product((3, 4, 5), ((2, "k"), ("k", 5))), product((3, 4, 5), ((4, 6), (6, 5)), activation="relu")],
    ids=["open depth", "activation"],
)
def test_others_stay_on_real_values(graph: Graph) -> None:
    target = target_named("tensorrt")
    verdict = next(verdict for op, verdict in target.verdicts(graph, final=False) if op.kind == "MatMul")
    assert verdict.runs == "floats" and "two activations with zero points" in verdict.rule and "isolate_float" in verdict.remedy
    after, notes = applied(graph, "shift_to_symmetric", scope="all")
    assert all(not after[name].is_quantized for op in after.ops if op.kind == "MatMul" for name in op.inputs)
    assert any("MatMul" in note for note in notes)
