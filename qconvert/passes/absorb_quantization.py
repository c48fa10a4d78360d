"""absorb_quantization: Quantize and Dequantize around operators in float become quantized operators.

Exact: a quantized operator means the real-valued function of its dequantized inputs, rounded once onto its output's quantization, which is
what Dequantize, operator, Quantize compute one after the other. Data movement commutes with both, so it runs on the stored integers.

The steps, in order: constants after Cast, Sub and Mul are after a Dequantize; constants after a Quantize become integers; equal
Quantize and Dequantize become one; then one walk over the operators. Convolutions and matrix products take integers if both operands have
them, other operators if their result ends with a quantization; data movement takes them always, and a Dequantize after it keeps the float
values for whoever still reads them. What is left of pairs becomes a Requantize or nothing. (s), (t) and (u) are quantizations; tensors
without one are in float:

    x (s) -> Dequantize -> a -> Conv -> b -> Relu -> c -> Quantize -> y (t) -> Dequantize -> d -> Reshape -> e -> Quantize -> z (u)
    w (v) -> Dequantize ---------^
becomes
    x (s) -> Conv, activation relu -> y (t) -> Reshape -> e/int8 (t) -> Requantize -> z (u)
    w (v) -----^

The clips that are left on integers become activations of the operators that write those integers (fuse_clips()).
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.arithmetic import quantize
from qconvert.evaluate.known_values import KnownValues
from qconvert.graph import Graph, Op, canonical_dtype, drop_keys
from qconvert.graph.activations import activation_bounds, clip_range, is_exact, simplest_activation
from qconvert.operators import kind_of
from qconvert.operators.properties import ANY
from qconvert.passes.absorb.absorber import Absorber
from qconvert.passes.decompose_weights import dequantized_casts
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Absorb what can be absorbed exactly; the note counts the operators that became quantized, and the conversions that are left."""
    read = dequantized_casts(_remove_identities(graph))
    if not any(kind_of(op).rule == "convert" or kind_of(op).clips for op in read.ops):
        return graph, ()
    absorber = Absorber(_merge_equal(_quantize_constants(read)))
    for op in absorber:
        absorber.visit(op)
    changed = fuse_clips(absorber.finish(prune=True))
    if changed.ops == graph.ops:
        return graph, ()
    left, before = (sum(kind_of(op).rule == "convert" for op in item.ops) for item in (changed, graph))
    return changed, (f"{absorber.count} operators are quantized; of {before} Quantize and Dequantize {left} are left",)


def _remove_identities(graph: Graph) -> Graph:
    """Give each value one name; an Identity (or a Cast to the same type) that gives an output of the graph its name stays."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Identity", "Cast"):
        if op.name not in graph.public and graph[op.inputs[0]].shares_quantization(graph[op.name]):
            rewriter.forward(op.name, op.inputs[0])
            rewriter.remove(op)
    return rewriter.finish()


def _quantize_constants(graph: Graph) -> Graph:
    """Replace weights that exporters keep as float after a Quantize by the integers that every runtime computes from them."""
    rewriter = Rewriter(graph)
    known = KnownValues(graph.tensors, rewriter.producers)
    for op in rewriter.of_kind("Quantize"):
        result = graph[op.name]
        data = known.get(op.inputs[0])
        if data is None or result.quantization is None or result.dtype.startswith("float") or canonical_dtype(data.dtype) != "float32":
            continue
        rewriter.define(replace(result, shape=data.shape, data=quantize(data, result.quantization, result.dtype)))
        rewriter.remove(op)
    return rewriter.finish()


def _merge_equal(graph: Graph) -> Graph:
    """Leave one Quantize for each value and quantization, one Dequantize for each value: exporters write one for each reader."""
    rewriter = Rewriter(graph)
    first: dict[tuple[object, ...], str] = {}
    for op in rewriter.of_kind("Quantize", "Dequantize"):
        result = graph[op.name]
        key = (kind_of(op), rewriter.resolve(op.inputs[0]), result.dtype, result.quantization and result.quantization.key)
        if key in first and result.name not in graph.public:
            rewriter.forward(result.name, first[key])
            rewriter.remove(op)
        first.setdefault(key, result.name)
    return rewriter.finish()


def fuse_clips(graph: Graph) -> Graph:
    """Fuse a Clip of integers into the operator before it, if nobody else reads or sees what that writes.

    An activation that the operator has already, and the next one with the same quantization, are one if an activation leaves what both
    leave. A Concat gets none, since no kernel clips what it joins. A Clip to what the results of a kind lie between changes nothing:
    clip_softmax puts one after a Softmax.
    """
    rewriter = Rewriter(graph)
    fused: dict[str, tuple[Op, Op]] = {}  # result of a fused operator -> the operator of the graph, and its form now
    for op in rewriter.of_kind("Clip"):
        name = op.inputs[0] if rewriter.is_read_once(op.inputs[0]) else ""
        maker = rewriter.producers.get(name)
        if maker is None:
            continue
        maker, form = fused.get(name, (maker, maker))
        clipped = _with_clip(graph, form, op)
        if clipped is not None:
            rewriter.replace(maker, clipped)
            rewriter.remove(op)
            fused[clipped.name] = maker, clipped
    return rewriter.finish()


def _with_clip(graph: Graph, writer: Op, clip: Op) -> Op | None:
    """Return the operator with the activation that the Clip after it is, writing the Clip's result; None if there is none."""
    source, result = graph[clip.inputs[0]], graph[clip.name]
    if source.per_tensor is None or not source.shares_quantization(result):
        return None
    if len(writer.outputs) != 1 or writer.attributes.get("arithmetic"):
        return None
    bounds = kind_of(clip).limits(clip, graph.constant)
    if bounds is None or not is_exact(bounds, source):
        return None
    own = kind_of(writer).interval(graph, writer)
    second = clip_range(source, bounds)
    if own != ANY:
        inner = clip_range(source, own)
        if second[0] <= inner[0] and inner[1] <= second[1]:
            return replace(writer, outputs=clip.outputs)
    if not kind_of(writer).fuses_activation:
        return None
    first = clip_range(source, activation_bounds(writer))
    lowest, highest = max(first[0], second[0]), min(first[1], second[1])
    found = simplest_activation(source, (lowest, highest)) if lowest <= highest else None
    if found is None:
        return None
    others = drop_keys(writer.attributes, "activation")
    return replace(writer, outputs=clip.outputs, attributes={**others, "activation": found} if found else others)
