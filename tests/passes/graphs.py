"""Small graphs for tests of passes, and their outputs in onnxruntime before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.formats.onnx.writer import build
from qconvert.graph import Array, canonical_dtype
from qconvert.operators.shapes_and_functions import infer
from qconvert.passes import BUILTIN
from qconvert.plugins import Change, pass_named
from qconvert.rules.validation import validate
from qconvert.runtimes.onnxruntime import OnnxRuntime

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "data_format": "channels_first"}


def q(scale: float, zero_point: int = 0) -> Quantization:
    return Quantization.per_tensor(scale, zero_point)


def constant(name: str, data: Array, quantization: Quantization | None = None) -> Tensor:
    return Tensor(name, canonical_dtype(data.dtype), data.shape, data, quantization)


def make(ops: Sequence[Op], tensors: Sequence[Tensor], inputs: str, outputs: str) -> Graph:
    """A valid graph. Names of inputs and outputs are separated by blanks; tensors not listed are float32; shapes are inferred."""
    known = {tensor.name: tensor for tensor in tensors}
    for op in ops:
        for name in (*op.inputs, *op.outputs):
            if name:
                known.setdefault(name, Tensor(name, "float32", None))
    graph = infer(Graph("test", known, tuple(ops), tuple(inputs.split()), tuple(outputs.split())))
    validate(graph)
    return graph


def said(notes: Iterable[Change | str]) -> tuple[str, ...]:
    """What a pass returned, in words, with " (exact)" where a Change declares it."""
    return tuple(note if isinstance(note, str) else f"{note.text}{' (exact)' if note.exact else ''}" for note in notes)


def applied(graph: Graph, name: str, **options: object) -> tuple[Graph, tuple[str, ...]]:
    """The graph after a pass, validated, and what the pass said."""
    assert name in BUILTIN
    changed, notes = pass_named(name).run(graph, None, **options)
    validate(changed)
    assert bool(notes) or changed is graph
    return changed, said(notes)


def outputs(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """The graph's outputs in onnxruntime, without optimizations."""
    found = OnnxRuntime(build(graph, 0, {}).SerializeToString(), optimize=False).run(feeds)
    return [found[name] for name in graph.outputs]


def assert_equal(before: Graph, after: Graph, feeds: Mapping[str, Array]) -> None:
    """Both give the same bits."""
    for a, b in zip(outputs(before, feeds), outputs(after, feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.array_equal(a, b)


def random_integers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def quantized_conv(
    seed: int = 0, *, dtype: str = "int8", scales: Sequence[float] = (0.02,), weight_dtype: str = "int8", **attributes: object
) -> Graph:
    """x (1,3,5,5) -> Conv with 4 outputs -> y; per axis if there are four scales."""
    rng = np.random.default_rng(seed)
    zero = 3 if dtype == "int8" else 131
    w_zero = 0 if weight_dtype == "int8" else 128
    weights = (rng.integers(-127, 128, (4, 3, 3, 3)) + w_zero).astype(weight_dtype)
    per_axis = len(scales) > 1
    wq = Quantization.per_axis(scales, 0, w_zero) if per_axis else q(scales[0], w_zero)
    products = np.float32(0.05) * wq.scale
    bq = Quantization.per_axis(products, 0) if per_axis else q(float(products[0]))
    tensors = [
        Tensor("x", dtype, (1, 3, 5, 5), None, q(0.05, zero)),
        constant("w", weights, wq),
        constant("b", rng.integers(-3000, 3000, 4).astype(np.int32), bq),
        Tensor("y", dtype, None, None, q(0.4, zero + 2)),
    ]
    return make([Op("Conv", ("x", "w", "b"), ("y",), {**CONV, **attributes})], tensors, "x", "y")  # type: ignore[dict-item]
