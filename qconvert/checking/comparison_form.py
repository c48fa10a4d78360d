"""One form for what TFLite states otherwise than ONNX, so that two graphs with such files between them can be compared.

TFLite has padding of a convolution as SAME or as a Pad in front, global pooling as a reduction, and no names for sizes that are known only
at run time. None of this changes a value.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.passes import absorb_quantization, fuse_pad, matmul_to_gemm
from qconvert.plugins import Target

__all__ = ["to_comparison_form"]

_NO_TARGET = Target("", "", "no target")


def to_comparison_form(graph: Graph) -> Graph:
    """The graph with quantized operators wherever they can be, padding in convolutions, reductions for global pooling, and equal
    forms of what has several: axes, sizes of a Reshape, sizes known only at run time, and values that only get another name."""
    graph = _remove_identities(_drop_size_names(graph))
    graph, _ = matmul_to_gemm.run(graph, None)
    graph, _ = absorb_quantization.run(graph, None)
    graph, _ = fuse_pad.run(_remove_identities(graph), _NO_TARGET)
    tensors: dict[str, Tensor] = {}
    ops = [op if (canonical := kind_of(op).canonical) is None else canonical(graph, op, tensors) for op in graph.ops]
    ops = [_dequantize_bounds(graph, part, tensors) for op in ops for part in _split_op(graph, op, tensors)]
    return graph.evolve(tensors=tensors.values(), ops=ops)


def _split_op(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> list[Op]:
    """A Clip as the Max and Min that TFLite has, and an activation of float values by itself."""
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


def _dequantize_bounds(graph: Graph, op: Op, tensors: dict[str, Tensor]) -> Op:
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


def _drop_size_names(graph: Graph) -> Graph:
    def drop_names(tensor: Tensor) -> Tensor:
        assert tensor.shape is not None
        return replace(tensor, shape=tuple("?" if isinstance(size, str) else size for size in tensor.shape))

    return graph.evolve(tensors=[drop_names(t) for t in graph.tensors.values() if t.shape is not None and t.static_shape is None])


def _remove_identities(graph: Graph) -> Graph:
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

    def resolve_name(name: str) -> str:
        while name in renamed:
            name = renamed[name]
        return name

    tensors = [replace(graph[name], name=resolve_name(name)) for name in renamed if resolve_name(name) in graph.public]
    ops = [
        replace(op, inputs=tuple(resolve_name(name) for name in op.inputs), outputs=tuple(resolve_name(name) for name in op.outputs))
        for op in graph.ops
        if id(op) not in gone
    ]
    return graph.evolve(tensors=tensors, ops=ops)
