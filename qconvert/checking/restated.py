"""One form for what TFLite states otherwise than ONNX, so that two graphs with such files between them can be compared.

TFLite has padding of a convolution as SAME or as a Pad in front, global pooling as a reduction, and no names for sizes that are known only
at run time. None of this changes a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.passes import absorb_quantization, fuse_pad
from qconvert.plugins import Target

__all__ = ["restated"]

_GLOBAL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
_NO_TARGET = Target("", "", "no target")


def restated(graph: Graph) -> Graph:
    """The graph with quantized operators wherever they can be, padding in convolutions, reductions for global pooling, and equal
    spellings of what has several: axes, sizes of a Reshape, sizes known only at run time, and values that only get another name."""
    graph = _without_identities(_without_names_of_sizes(graph))
    graph, _ = absorb_quantization.run(graph, None)
    graph, _ = fuse_pad.run(_without_identities(graph), _NO_TARGET)
    tensors: dict[str, Tensor] = {}
    ops = [_SPELLINGS[op.kind](graph, op, tensors) if op.kind in _SPELLINGS else op for op in graph.ops]
    ops = [_with_real_bounds(graph, part, tensors) for op in ops for part in _parts(graph, op, tensors)]
    return graph.evolve(tensors=tensors.values(), ops=ops)


def _parts(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> list[Op]:
    """A Clip as the Max and Min that TFLite has, and an activation of real values by itself."""
    result = graph[op.outputs[0]] if op.outputs else None
    if op.kind == "Clip" and result is not None and len(op.inputs) == 3 and all(op.inputs):
        lower = graph.names(tensors).fresh(f"{result.name}/lower")
        tensors[lower] = replace(result, name=lower)
        return [Op("Max", op.inputs[:2], (lower,), {}, op.source), Op("Min", (lower, op.inputs[2]), op.outputs, {}, op.source)]
    if op.attributes.get("activation") == "relu" and result is not None and not result.is_quantized:
        whole = graph.names(tensors).fresh(f"{result.name}/whole")
        tensors[whole] = replace(result, name=whole)
        return [replace(op.with_attributes(activation=""), outputs=(whole,)), Op("Relu", (whole,), op.outputs, {}, op.source)]
    return [op]


def _with_real_bounds(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """A Max or Min of quantized data and one quantized number, as of that real number."""
    if op.kind not in ("Max", "Min"):
        return op
    names = list(op.inputs)
    for index, name in enumerate(names):
        tensor = graph.tensors.get(name)
        if tensor is not None and tensor.data is not None and tensor.data.size == 1 and tensor.quantization is not None:
            names[index] = graph.names(tensors).fresh(f"{name}/real")
            real = np.asarray(dequantize(tensor.data, tensor.quantization), np.float32)
            tensors[names[index]] = Tensor(names[index], "float32", tensor.shape, real)
    return replace(op, inputs=tuple(names))


def _without_zero_bias(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    bias = graph.constant(op.inputs[2]) if len(op.inputs) > 2 else None
    return op if bias is None or bias.any() else replace(op, inputs=op.inputs[:2])


def _without_names_of_sizes(graph: Graph) -> Graph:
    def unnamed(tensor: Tensor) -> Tensor:
        assert tensor.shape is not None
        return replace(tensor, shape=tuple("?" if isinstance(size, str) else size for size in tensor.shape))

    return graph.evolve(tensors=[unnamed(t) for t in graph.tensors.values() if t.shape is not None and t.static_shape is None])


def _without_identities(graph: Graph) -> Graph:
    """Without those that only rename a value that an operator computes for nobody else."""
    writers, readers = graph.producers(), graph.consumers()
    renamed: dict[str, str] = {}
    gone: set[int] = set()
    for op in graph.ops:
        if op.kind != "Identity":
            continue
        source, result = op.inputs[0], op.outputs[0]
        if result not in graph.public:
            renamed[result] = renamed.get(source, source)
        elif source in writers and source not in graph.public and len(readers[source]) == 1 and source not in renamed.values():
            renamed[renamed.get(source, source)] = result
        else:
            continue
        gone.add(id(op))
    if not gone:
        return graph

    def resolved(name: str) -> str:
        while name in renamed:
            name = renamed[name]
        return name

    tensors = [replace(graph[name], name=resolved(name)) for name in renamed if resolved(name) in graph.public]
    ops = [
        replace(op, inputs=tuple(resolved(name) for name in op.inputs), outputs=tuple(resolved(name) for name in op.outputs))
        for op in graph.ops
        if id(op) not in gone
    ]
    return graph.evolve(tensors=tensors, ops=ops)


def _as_reduction(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    rank = graph[op.inputs[0]].rank
    if rank is None:
        return op
    axes = np.arange(2, rank) if op["data_format"] == "channels_first" else np.arange(1, rank - 1)
    name = _constant(graph, f"{op.outputs[0]}/axes", axes, tensors)
    return Op(_GLOBAL[op.kind], (op.inputs[0], name), op.outputs, {"keepdims": 1}, op.source)


def _with_positive_axes(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    rank = graph[op.inputs[0]].rank
    axes = graph.constant(op.inputs[1]) if op.has(1) else None
    if rank is None or axes is None:
        return op
    return replace(op, inputs=(op.inputs[0], _constant(graph, f"{op.outputs[0]}/axes", np.sort(axes % rank), tensors), *op.inputs[2:]))


def _with_sizes(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """Sizes of a Reshape as the result has them, -1 for one that is known only at run time."""
    shape = graph[op.outputs[0]].shape
    if shape is None or sum(isinstance(size, str) for size in shape) > 1:
        return op
    sizes = np.array([-1 if isinstance(size, str) else size for size in shape])
    return Op("Reshape", (op.inputs[0], _constant(graph, f"{op.outputs[0]}/sizes", sizes, tensors)), op.outputs, {}, op.source)


def _with_last_axis(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    return op.with_attributes(axis=-1) if op["axis"] + 1 in (0, graph[op.inputs[0]].rank) else op


def _without_padding(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
    """Whether padding counts says nothing where there is none."""
    return op if any(op["pads"]) or op["auto_pad"] != "NOTSET" else op.with_attributes(count_include_pad=0)


def _constant(graph: Graph, wanted: str, values: Array, tensors: dict[str, Tensor]) -> str:
    name = graph.names(tensors).fresh(wanted)
    tensors[name] = Tensor(name, "int64", values.shape, values.astype(np.int64))
    return name


_SPELLINGS: dict[str, Callable[[Graph, Op, dict[str, Tensor]], Op]] = {
    **dict.fromkeys(_GLOBAL, _as_reduction),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"), _with_positive_axes),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _with_last_axis),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), _without_zero_bias),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _with_sizes),
    "AveragePool": _without_padding,
}
