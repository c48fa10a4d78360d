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

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import accumulator_scale, is_accumulator_scale, quantize
from qconvert.errors import format_count
from qconvert.evaluate.folding import evaluate_constant
from qconvert.evaluate.known_values import KnownValues
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, canonical_dtype, drop_keys, integer_range, numpy_dtype
from qconvert.graph.activations import Bounds, activation_bounds, clip_range, is_exact, simplest_activation
from qconvert.operators import kind_of
from qconvert.operators.properties import ANY
from qconvert.passes.decompose_weights import dequantized_casts
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rules.validation.quantization import moved_quantization


def absorb_quantization(graph: Graph, target: Target | None) -> PassResult:
    """Absorb what can be absorbed exactly; the note counts the operators that became quantized, and the conversions that are left."""
    read = dequantized_casts(_remove_identities(graph))
    if not any(kind_of(op).rule == "convert" or (kind_of(op).clips and read[op.name].is_quantized) for op in read.ops):
        return graph, ()
    absorber = _Absorber(_merge_equal(_quantize_constants(read)))
    for op in absorber:
        absorber.visit(op)
    changed = fuse_clips(absorber.finish(prune=True))
    if changed.ops == graph.ops:
        return graph, ()
    left, before = (sum(kind_of(op).rule == "convert" for op in item.ops) for item in (changed, graph))
    return changed, (f"{format_count(absorber.count, 'operator', 'are')} quantized; of {before} Quantize and Dequantize {left} are left",)


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
    """Fuse a Clip or Relu of integers into the operator before it, if nobody else reads or sees what that writes.

    An activation that the operator has already, and the next one with the same quantization, are one if an activation leaves what both
    leave. A Concat gets none, since no kernel clips what it joins. A Clip to what the results of a kind lie between changes nothing:
    clip_before_quantize puts one after a Softmax.
    """
    rewriter = Rewriter(graph)
    fused: dict[str, tuple[Op, Op]] = {}  # result of a fused operator -> the operator of the graph, and its form now
    for op in (op for op in rewriter if kind_of(op).clips):
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


#: Readers of readers that are followed; a value that goes further stays real.
_FARTHEST = 64


def _is_single_movement(op: Op) -> bool:
    """Whether an operator is data movement of one tensor alone, so that rounding before or after it is the same."""
    spec = kind_of(op)
    return spec.rule == "move" and len(op.outputs) == 1 and set(spec.roles[1:]) <= {"index"} and spec.inputs[1] > 0


class _Absorber(Rewriter):
    """One walk over a graph; `count` is how many operators became quantized."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._known = KnownValues(self.graph.tensors, self.producers)
        self._stored: dict[str, str] = {}  # float values -> the tensor of stored integers that they come from
        self.count = 0

    def visit(self, op: Op) -> None:
        """Put the new form of the next operator in its place, if it has one."""
        inputs = tuple(map(self.resolve, op.inputs))
        read = op if inputs == op.inputs else replace(op, inputs=inputs)
        if kind_of(op).dequantizes and self.graph[op.name].dtype == "float32":
            self._stored[op.name] = read.inputs[0]
        elif self._replace_quantize(read) or self._move_integers(read) or self._quantize_operator(read) or self._quantize_clip(read):
            self.remove(op)

    def _stored_of(self, real: str) -> str:
        """Return the tensor of stored integers that float values come from; "" if they come from none."""
        return self.resolve(self._stored.get(real, ""))

    def _replace_quantize(self, op: Op) -> bool:
        """Put a Requantize in the place of a Quantize of values that came from integers, or nothing if the quantization is theirs."""
        source = self._stored_of(op.inputs[0]) if kind_of(op).quantizes else ""
        if not source:
            return False
        result = self[op.name]
        if source == result.name:
            return True
        if not self[source].shares_quantization(result):
            self.emit(op.derive("Requantize", (source,), op.outputs))
        elif result.name in self.graph.public:
            self.emit(op.derive("Identity", (source,), op.outputs))
        else:
            self.forward(result.name, source)
        return True

    # data movement

    def _move_integers(self, op: Op) -> bool:
        """Move integers instead of the float values after a Dequantize, if all data have one quantization."""
        spec = kind_of(op)
        if spec.rule != "move":
            return False
        data = spec.positions(op, "data")
        names = [self._stored_of(op.inputs[index]) for index in data]
        first = self[names[0]] if names and names[0] else None
        if first is None or first.quantization is None or not all(n and self[n].shares_quantization(first) for n in names):
            return False
        fillers = spec.positions(op, "filler")
        filled = [self._stored_filler(op, index, first) for index in fillers]
        outputs = spec.results_of(op)
        tensors = self.graph.tensors
        moved = (moved_quantization(tensors, op, first, tensors[name].shape) for name in outputs)
        quantizations = [found for found in moved if found is not None]
        if None in filled or len(quantizations) < len(outputs):
            return False
        inputs = list(op.inputs)
        for index, name in zip((*data, *fillers), (*names, *filled), strict=True):
            inputs[index] = str(name)
        while not inputs[-1]:
            inputs.pop()
        if first.data is not None and len(outputs) == 1 and self._move_constant(op, first, quantizations[0], inputs):
            return True
        written = [self._integers(name, first.dtype, quantization) for name, quantization in zip(outputs, quantizations, strict=True)]
        self.emit(replace(op, inputs=tuple(inputs), outputs=(*written, *op.outputs[len(written) :])))
        for real, stored in zip(outputs, written, strict=True):
            self._dequantize(stored, real, op)
        return True

    def _move_constant(self, op: Op, source: Tensor, quantization: Quantization, inputs: Sequence[str]) -> bool:
        """Move the integers of a constant now. The result takes the constant's name if nobody else reads it."""
        moved = replace(op, inputs=tuple(inputs))
        values = [self._data(name) if name else None for name in inputs]
        plain = {name: replace(self[name], quantization=None) for name in inputs if name}
        found = evaluate_constant(moved, plain, values)
        if found is None:
            return False
        real = op.name
        is_alone = self.is_read_once(source.name) and len(self.readers[op.inputs[0]]) == 1
        is_turned = kind_of(op).transposes and source is self.graph.tensors.get(source.name)
        name = source.name if is_alone else self._integers(real, source.dtype, quantization)
        self.forget((name,) if is_alone else ())
        constant = Tensor(name, source.dtype, found[0].shape, found[0], quantization)
        self.define(constant, permutation=op["perm"] if is_alone and is_turned else ())
        self._dequantize(name, real, op)
        return True

    def _data(self, name: str) -> Array | None:
        moved = self[name].data if name in self else None  # perhaps by a movement before this one
        return moved if moved is not None else self._known.get(name)

    def _stored_filler(self, op: Op, index: int, data: Tensor) -> str | None:
        """Return what fills gaps, input `index`, with the quantization of the data: "" for real zero if the input may be absent, None if it
        is not with the quantization or not known."""
        if op.attributes.get("mode", "constant") != "constant" or not op.inputs[index]:
            return ""
        value, quantization = self._known.get(op.inputs[index]), data.per_tensor
        if value is None or value.size != 1 or quantization is None:
            return None
        real = float(value.flat[0])
        stored = quantize(np.array([real], np.float32), quantization, data.dtype)
        steps = np.float32(stored[0].astype(np.float32) - np.float32(quantization.zero_point[0])) * quantization.scale[0]
        if steps != np.float32(real):
            return None
        if stored[0] == quantization.zero_point[0] and index >= kind_of(op).inputs[0]:
            return ""
        filler = stored.reshape(()).astype(numpy_dtype(data.dtype))
        return self.constant(f"{op.name}/padding", filler, data.dtype, quantization)

    # operators in float

    def _find_next_quantization(self, name: str) -> Tensor | None:
        """Return the quantization on which every reader puts the float value `name`, directly or after moving or clipping it; None without
        one."""
        pending, found, clips, seen = [name], None, list[Bounds](), 0
        while pending:
            current = pending.pop()
            readers = self.readers[current]
            if not readers or current in self.graph.public or seen > _FARTHEST:
                return None
            seen += 1
            for reader in readers:
                if not reader.outputs:  # a state keeps the float value
                    return None
                result = self.graph[reader.name]
                if kind_of(reader).quantizes:
                    if result.per_tensor is None:
                        return None
                    if found is not None and not found.shares_quantization(result):
                        return None
                    found = result
                elif _is_single_movement(reader):
                    pending.append(result.name)
                elif (bounds := kind_of(reader).limits(reader, self._known.get)) is not None:
                    pending.append(result.name)
                    clips.append(bounds)
                else:
                    return None
        # Clipping integers has to give what clipping the float values before rounding gives.
        return found if found is not None and all(is_exact(bounds, found) for bounds in clips) else None

    def _quantize_operator(self, op: Op) -> bool:
        """Give an operator the integers after its real inputs, and its result a quantization, where both are there."""
        spec = kind_of(op)
        taken = self._find_stored_inputs(op)
        if not any(taken) and not self._sums_stored(op):
            return False
        quantization = self._find_next_quantization(op.name) if spec.rule == "real" else None
        if quantization is None and not (any(taken) and (spec.rule != "real" or spec.sums_products)):
            return False
        op = replace(op, inputs=tuple(new or old for new, old in zip(taken or op.inputs, op.inputs, strict=True)))
        if quantization is None:
            self.emit(op)
            self.count += 1
        else:
            self._emit_on_quantization(op, quantization)
        return True

    def _sums_stored(self, op: Op) -> bool:
        """Return whether an operator sums products of integers to float values, as a MatMul whose bias became part of it later."""
        if not kind_of(op).sums_products or len(op.outputs) != 1 or self.graph[op.name].is_quantized:
            return False
        data, weights = (self[name] for name in op.inputs[:2])
        return data.per_tensor is not None and weights.is_quantized

    def _find_stored_inputs(self, op: Op) -> list[str]:
        """Return for each input the tensor of stored integers that the operator reads in its place, or ""; empty if it reads none."""
        spec = kind_of(op)
        stored = [self._stored_of(name) for name in op.inputs]
        if not any(stored) or len(op.outputs) != 1:
            return []
        if spec.rule == "index":
            return stored if spec.ranks else []
        if spec.rule != "real":
            return []
        if spec.sums_products:
            return self._linear_inputs(op, stored)
        data = spec.positions(op, "data")
        return [name if index in data else "" for index, name in enumerate(stored)]

    def _emit_on_quantization(self, op: Op, quantization: Tensor) -> None:
        """Emit the operator, which reads integers already, with integers on `quantization` as its result, and its float values after
        those."""
        real = op.name
        name = self._integers(real, quantization.dtype, quantization.require_quantization())
        op = replace(op, outputs=(name,))
        if not self._quantize_clip(op):
            self.emit(op)
            self.count += 1
        self._dequantize(self.resolve(name), real, op)

    # clipping

    def _quantize_clip(self, op: Op) -> bool:
        """Emit a Relu or Clip of integers with one quantization as a Clip whose bounds have the quantization, or nothing if the
        quantization is no wider; of two quantizations, as a Requantize if the result's is no wider."""
        bounds = kind_of(op).limits(op, self._known.get)
        if bounds is None:
            return False
        source, result = self[op.inputs[0]], self[op.name]
        q = source.per_tensor
        if q is None or result.per_tensor is None or not is_exact(bounds, result):
            return False
        limits = clip_range(result, bounds)
        if not source.shares_quantization(result):
            if limits == integer_range(result.dtype):
                self.emit(op.derive("Requantize", (source.name,), op.outputs))
                return True
            return False
        if limits == integer_range(source.dtype) and result.name not in self.graph.public:
            if source.name in self.graph or result.name not in self.graph:
                self.forward(result.name, source.name)
            else:  # a name of the file, by which a check finds the tensor
                self.define(replace(source, name=result.name))
                self.rename(source.name, result.name)
            return True
        with np.errstate(over="ignore"):  # at scales near the largest float32 a bound is infinite
            ends = [float(np.float32(limit - q.zero_point[0]) * q.scale[0]) for limit in limits]
        self.emit(self.clip(source.name, ends, result.name, op.source))
        return True

    def _linear_inputs(self, op: Op, stored: Sequence[str]) -> list[str]:
        """Return the integers of data and weights if both have them and the kernels' arithmetic fits, with a bias that has their scale."""
        if not (stored[0] and stored[1]):
            return [""] * len(stored)
        data, weights = (self[name] for name in stored[:2])
        factor = weights.require_quantization()
        is_off_axis = kind_of(op).has_weights and factor.axis not in (None, 0) and not factor.block_size
        if data.per_tensor is None or is_off_axis:
            return [""] * len(stored)
        if len(stored) > 2 and stored[2]:
            return [*stored[:2], stored[2] if self._is_accumulated(data, weights, self[stored[2]]) else ""]
        return list(stored)

    @staticmethod
    def _is_accumulated(data: Tensor, weights: Tensor, bias: Tensor) -> bool:
        """Return whether a bias can be added to the sum of products: int32 with their scale, and zero point 0."""
        first, second, own = (tensor.require_quantization() for tensor in (data, weights, bias))
        if bias.dtype != "int32" or not own.is_symmetric or second.block_size:
            return False
        exact, stated = accumulator_scale(first, second), own.scale
        if stated.size not in (1, exact.size) and exact.size != 1:
            return False
        return is_accumulator_scale(stated, exact)

    def _integers(self, real: str, dtype: str, quantization: Quantization) -> str:
        """Return a tensor for the stored integers of `real`: the result of a Quantize of just this quantization, or one with a new name."""
        shape = self.graph[real].shape
        wanted = Tensor(f"{real}/{dtype}", dtype, shape, None, quantization)
        for reader in (op for op in self.readers[real] if kind_of(op).quantizes):
            result = self.graph[reader.name]
            if result.shares_quantization(wanted):
                return self.define(replace(result, shape=shape if result.shape is None else result.shape))
        return self.add(wanted.name, wanted)

    def _dequantize(self, stored: str, real: str, op: Op) -> None:
        self.emit(op.derive("Dequantize", (stored,), (real,)))
        self._stored[real] = stored
