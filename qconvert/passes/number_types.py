"""Number types: float16 as float32, indices of 64 bits as int32, and graph inputs and outputs as float values and as integers.

widen_float16: networks of float16 and bfloat16 compute in float32, where the target has no kernels for their products and conversions.

Every value becomes float32, which holds it exactly; what is computed is no longer rounded to 11 or 8 bits after each operator, and so is
nearer to the real numbers than the source. Weights of float16 stay so, after a Cast, and take no more bytes than before. Inputs and
outputs of the graph keep their type, and what the source casts to float16 is rounded to it still. Elementwise float16, for which LiteRT has
kernels, is left alone where nothing is multiplied by weights or quantized.

So do networks for a target of symmetric activations where products of 16 bits read quantizations with zero points: the shifts that stand
for these (shift_to_symmetric) need float32, in which a product between quantizations is a quantized operator.

narrow_indices: indices of int64 are int32 where whoever reads them takes either, for runtimes whose kernels give int32 alone.

    ArgMax -> int64 -> graph output        ArgMax -> int32 -> graph output

Every index of a tensor that fits into memory on such a device is a number of 32 bits. Exact, but for the type of outputs.

float_io: quantized graph inputs and outputs become float, with the Quantize and Dequantize inside the graph.

integer_io: real graph inputs and outputs that are quantized at once, or come from integers, become the integers themselves.

The mirror of float_io: whoever runs the model quantizes and dequantizes, with the scales of its inputs and outputs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.errors import format_count, format_verb
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.typing import output_type
from qconvert.passes.absorb_quantization import absorb_quantization
from qconvert.passes.quantizations.scales_and_costs import middle
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter, dequantized_source

_NARROW = ("float16", "bfloat16")


def widen_float16(graph: Graph, target: Target | None) -> PassResult:
    """Widen the whole graph if it multiplies by weights, quantizes or dequantizes in a type that the target's product_types do not
    name, or next to zero points."""
    if target is None or any(kind_of(op).rule == "opaque" for op in graph.ops):
        return graph, ()
    found = {graph[op.name].dtype for op in graph.ops if kind_of(op).sums_products and op.outputs}
    converted = {graph[name].dtype for op in graph.ops if kind_of(op).rule == "convert" for name in (op.inputs[0], op.name)}
    narrow = (found | converted).intersection(_NARROW)
    lacking = bool(target.kernels.product_types) and not narrow.issubset(target.kernels.product_types)
    symmetric = target.storage.symmetric_activations
    shifted = bool(symmetric) and not found.isdisjoint(_NARROW) and any(_is_affine(graph, op) for op in graph.ops)
    if not lacking and not shifted:
        return graph, ()
    rewriter = Rewriter(graph)
    count, kept = _widen(rewriter)
    following = f", {format_count(kept, 'constant')} of float16 before a Cast" if kept else ""
    listed = " and ".join(sorted(narrow))
    note = f"{format_count(count, 'value')} of {listed} {format_verb(count, 'are')} float32"
    note += f": products are no longer rounded to few bits{following}"
    changed = rewriter.finish()
    return (absorb_quantization(changed, target)[0] if shifted else changed), (note,)


def _widen(rewriter: Rewriter) -> tuple[int, int]:
    """Widen every value; return how many there are, and how many constants stay narrow after a Cast."""
    graph = rewriter.graph
    count = kept = 0
    wide: dict[str, str] = {}  # narrow tensor -> the float32 one in its place
    weights = {op.inputs[1] for op in graph.ops if kind_of(op).sums_products and len(op.inputs) > 1}
    rounded = {op.name for op in graph.of_kind("Cast") if op["to"] == "float16" and graph[op.inputs[0]].dtype not in _NARROW}
    borders = {*graph.inputs, *graph.public, *rounded}
    for name, tensor in graph.tensors.items():
        if tensor.dtype not in _NARROW or tensor.is_quantized:
            continue
        count += not tensor.is_constant
        keeps = tensor.dtype == "float16" and name in weights and (tensor.rank or 0) > 1 and tensor.is_constant
        data = None if tensor.data is None or keeps else np.asarray(tensor.data).astype(np.float32)
        wide[name] = rewriter.fresh(f"{name}/float32") if name in borders or keeps else name
        rewriter.define(replace(tensor, name=wide[name], dtype="float32", data=data))
        if name in graph.inputs or keeps:
            rewriter.emit(Op("Cast", (name,), (wide[name],), {"to": "float32"}))
        kept += keeps
    for op in rewriter:
        new = replace(op, inputs=tuple(wide.get(name, name) for name in op.inputs))
        if op.name not in rounded:
            new = new.with_attributes(to="float32") if kind_of(op).casts and op.name in wide else new
            new = replace(new, outputs=tuple(wide.get(name, name) for name in op.outputs))
        casts = []
        for name in op.outputs:
            if name in rounded:
                casts.append(op.derive("Cast", (name,), (wide[name],), to="float32"))
            elif name in graph.public and name in wide:
                casts.append(op.derive("Cast", (wide[name],), (name,), to=graph[name].dtype))
        rewriter.replace(op, new, *casts)
    return count, kept


def _is_affine(graph: Graph, op: Op) -> bool:
    """Whether an operator makes narrow float values of stored ones that have a zero point, off the middle of unsigned types."""
    data = graph[op.inputs[0]] if kind_of(op).dequantizes else None
    if data is None or data.is_constant or data.quantization is None or graph[op.name].dtype not in _NARROW:
        return False
    return bool((data.quantization.zero_point != (middle(data.dtype) if "int" in data.dtype else 0)).any())


def narrow_indices(graph: Graph, target: Target | None) -> PassResult:
    """Change the type of results that a kind says are indices, and that others read as such or not at all."""
    rewriter, count = Rewriter(graph), 0
    for op in graph.ops:
        for place, name in enumerate(op.outputs):
            if name and output_type(kind_of(op), place) == "index" and graph[name].dtype == "int64" and _takes_either(rewriter, name):
                rewriter.define(replace(graph[name], dtype="int32"))
                count += 1
    return rewriter.finish_with(lambda number: f"{format_count(number, 'tensor')} of indices: int32 in place of int64", count)


def _takes_either(rewriter: Rewriter, name: str) -> bool:
    """Whether all operators that read a tensor take integers of 32 bits as well."""
    for reader in rewriter.readers[name]:
        places = [place for place, given in enumerate(reader.inputs) if given == name]
        if not kind_of(reader).casts and not all(kind_of(reader).role(place) == "index" for place in places):
            return False
    return True


def float_io(graph: Graph, target: Target, *, io: str = "") -> PassResult:
    """Give float inputs and outputs their old names; the integer tensors get a suffix. Do nothing unless `io` is "float"."""
    names = [name for name in dict.fromkeys((*graph.inputs, *graph.outputs)) if graph[name].is_quantized]
    if io != "float" or not names:
        return graph, ()
    rewriter, inner = Rewriter(graph), dict[str, str]()
    for name in names:
        inner[name] = rewriter.add(f"{name}/{graph[name].dtype}", graph[name], data=graph[name].data)
        rewriter.define(Tensor(name, "float32", graph[name].shape))
        rewriter.relate(name, inner[name])
    for name in graph.inputs:
        if name in inner:
            rewriter.emit(Op("Quantize", (name,), (inner[name],)))
    for op in rewriter:
        rewriter.replace(op, op.with_names(inner))
    for name in graph.outputs:
        if name in inner and name not in graph.inputs:
            rewriter.emit(Op("Dequantize", (inner[name],), (name,)))
    return rewriter.finish(), (_count_io(len(names), "are float"),)


def _count_io(number: int, words: str) -> str:
    return f"{format_count(number, 'tensor')} among inputs and outputs {format_verb(number, words)}"


def integer_io(graph: Graph, target: Target | None, *, io: str = "") -> PassResult:
    """Remove the Quantize after inputs and the Dequantize before outputs; the integers take the names.

    Do nothing unless `io` is "integer".
    """
    if io != "integer":
        return graph, ()
    rewriter, renamed = Rewriter(graph), dict[str, str]()
    kept = {*graph.inputs, *graph.public}
    for name in graph.inputs:
        op = rewriter.only_reader(name)
        if op is not None and kind_of(op).quantizes and op.name not in graph.public:
            renamed[op.name] = name
            rewriter.remove(op)
    for name in graph.outputs:
        stored = dequantized_source(rewriter.producers, name)
        if stored and name not in rewriter.readers and stored not in kept and stored not in renamed and graph[stored].data is None:
            renamed[stored] = name
            rewriter.remove(rewriter.producers[name])
    if not renamed:
        return graph, ()
    for old, new in renamed.items():
        rewriter.define(replace(graph[old], name=new))
        rewriter.rename(old, new)
    return rewriter.finish(), (_count_io(len(renamed), "hold integers"),)
