"""Operators in float, between Dequantize and Quantize.

isolate_float: operators that the target cannot run on integers run in float, between Dequantize and Quantize.

That is what a quantized operator means, but for ties: the float values are float32 before they are rounded to the quantization, so a result
may be another by one step, seldom with quantizations of 8 bits, more often on those of 16, whose steps are nearer to float32's. Each
operator is listed; with no_float they are an error instead. Constant weights keep their integers after a Dequantize, which LiteRT computes
once, when it loads a model; without it, integer weights next to real data would make TFLite's kernels round the data to integers too
("hybrid" kernels). Other constants become real.

With numerics "exact", so do operators whose kernels fix the quantization of their results (Sigmoid, Softmax) where they have another: what
a kernel rounded to 1/256 would be rounded again, by up to half of all elements otherwise. LiteRT's XNNPACK makes one table of such an
operator and the conversions around it, which takes no longer; its Softmax of float values takes a third of the integer one's time.

movement_in_float: quantized data are moved, chosen and compared as the float values that they stand for. Exact.

Of 2 and 4 bits for every target: ONNX allows few of its operators on such integers, and onnxruntime (1.31) has kernels for Transpose alone.
Of any number of bits for a target whose `moves_in_float` says so: compilers and accelerators know an operator on integers by the Dequantize
before it and the Quantize after it, and refuse one that stands on the integers themselves. Nothing is rounded on the way: what comes out
has the quantization that went in, or is quantized as it was.

clip_before_quantize: a Clip stands before the Quantize of a quantized Softmax or LogSoftmax, of a Requantize to another type, and a Min
before that of a product of dequantized data and float weights. Exact.

    x -> Softmax -> y            x -> Dequantize -> Softmax -> Clip (0, 1) -> Quantize -> y
    uint8 -> Requantize -> int8  uint8 -> Dequantize -> Clip (the range of the result) -> Quantize -> int8

The Clip changes nothing: values of a Softmax lie between 0 and 1, those of a LogSoftmax below 0, and Quantize saturates at the same ends.
tract (0.23.9) makes a table of the operator between Dequantize and Quantize, as of a function of one element: all scores are 0 or 255. It
refuses an operator of two types. After a Clip it does neither.
onnxruntime drops a Clip that the Quantize implies, and computes a Softmax between the two by its own kernel on integers. Where that
overflows, a Min with 1 is in the place of the Clip, which onnxruntime keeps.
It rounds the float weights of a product between the two to int8 (weight_bias_quantization.cc), also of 16-bit data, which the kernels of
the source do not. A Min with the largest value of the result keeps it from that.
An accelerator knows a Softmax by the two operators around it, so that a target which has one keeps it as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range
from qconvert.arithmetic.storage import fits_dtype
from qconvert.errors import UnsupportedError, format_count
from qconvert.graph import Graph, Op, Quantization, Tensor, drop_keys, integer_range, numpy_dtype
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels import KERNELS
from qconvert.operators import kind_of
from qconvert.passes.stored_types import UNSIGNED, shift_to_dtype
from qconvert.plugins import PassResult, Target, kernels_of_source
from qconvert.rewriting import Rewriter

#: Elements from which on a matrix that is no operator's weights stays in 8 bits after a DEQUANTIZE.
_LARGE = 1024
#: Types of up to 8 bits whose integers, or those of the sign that is wanted, any type of 8 bits holds.
_BYTES = ("int4", "uint4", "uint8")
#: The rank of the weights of a convolution over two dimensions.
_FLAT_RANK = 4


def isolate_float(graph: Graph, target: Target | None, *, no_float: bool = False, numerics: str = "exact") -> PassResult:
    """Make the conversions explicit around every operator that the target cannot run on integers, as Target.judge says, and around those
    that are exact in float alone, unless no_float is true or numerics is "fast".

    Raises:
        UnsupportedError: no_float is true and there are such operators; all are listed.
    """
    if target is None or not target.knows_kernels:
        return graph, ()
    exact = numerics != "fast" and not no_float

    def reason(op: Op) -> str:
        return target.judge(graph, op, final=False).isolated_for or (_double_rounding_reason(graph, target, op) if exact else "")

    isolating = Isolating(graph, reason, target)
    if no_float:
        _refuse_floats(graph, target, isolating)
    return isolating.result()


def _refuse_floats(graph: Graph, target: Target, isolating: Isolating) -> None:
    """Raise UnsupportedError where operators would run in float: those that were isolated, and those that did so before."""
    reasons = list(isolating.reasons)
    for op, verdict in target.verdicts(graph, final=False):
        if verdict.isolated_for or kind_of(op).rule in ("convert", "move"):  # which compute nothing
            continue
        results = [graph[name] for name in op.outputs if name]
        if any("float" in result.dtype and not result.is_quantized for result in results):
            reasons.append((op, "its results are float in the source"))
    if reasons:
        raise UnsupportedError(
            f"operators would run in float: {'; '.join(_count_reasons(reasons))} (the first is {reasons[0][0].location})",
            remedy="Allow floats (leave out --no-float), or quantize the tensors named.",
            rule="float-operators",
        )


def _count_reasons(reasons: Iterable[tuple[Op, str]]) -> list[str]:
    counts = Counter((op.kind, reason) for op, reason in reasons)
    return [f"{count} {kind}: {reason}" for (kind, reason), count in sorted(counts.items())]


def _read_as_weights(graph: Graph) -> set[str]:
    """Return tensors that are the weights of an operator, but for groups of a volume, which are taken apart when they are written."""
    found: set[str] = set()
    for op in graph.ops:
        names = kind_of(op).inputs_with_role(op, "weights")
        found.update(name for name in names if op.attributes.get("group", 1) == 1 or (graph[name].rank or 0) <= _FLAT_RANK)
    return found


def _double_rounding_reason(graph: Graph, target: Target, op: Op) -> str:
    """Return why the kernel's result would be rounded twice; "" if it is exact, or need not be.

    Where float is slower, a second rounding of up to one step is left to the kernel.
    """
    fixed = target.kernels.fixed_result(graph, op)
    if fixed is None or fixed[0].quantization == fixed[1]:
        return ""
    if any(row.as_fast_in_float for row in target.kernels.rows_for(op)):
        return "their kernel fixes another scale and would require a second rounding"
    return "their kernel fixes a scale that loses more than a step of the result's" if _is_lossy(graph, op, *fixed) else ""


def _is_lossy(graph: Graph, op: Op, result: Tensor, fixed: Quantization) -> bool:
    """Whether a kernel that fixes a quantization gives results more than a step away: half of its steps is a whole step, or its range is
    smaller."""
    quantization = result.require_quantization()
    step = float(quantization.scale.min())
    own, others = affine_range(quantization, result.dtype), affine_range(fixed, result.dtype)
    low, high = kind_of(op).interval(graph, op)
    lost = max(float(others[0].max()) - max(float(own[0].min()), low), min(float(own[1].max()), high) - float(others[1].min()))
    return fixed.step >= 2 * step or lost > step


class Isolating(Rewriter):
    """A graph with operators in float between Dequantize and Quantize.

    Args:
        graph: what is changed.
        reason: an operator -> why it has to be there, in the words of a list of many; "" if it need not.
        target: says in which type constant weights may stay integers.

    Attributes:
        reasons: each of these operators, and why.
    """

    def __init__(self, graph: Graph, reason: Callable[[Op], str], target: Target | None) -> None:
        super().__init__(graph)
        self._reason = reason
        self._unpacked = target.kernels.unpacked_weights if target is not None else ""
        self._unpacked_blocks = target.kernels.unpacked_blocks if target is not None else ()
        self._symmetric = target is not None and self._unpacked in target.storage.symmetric_activations
        source = kernels_of_source(graph)
        self._keeps_packed = target is None or (source is not None and target.format in source[0].formats)
        self._real: dict[str, str] = {}
        self._stored: dict[str, str] = {}  # constant -> the same in another type
        self.reasons: list[tuple[Op, str]] = []
        self._constant_count = self._packed_count = 0
        self._weights = _read_as_weights(graph)
        for op in self:
            self._visit(op)

    def result(self) -> PassResult:
        """Return the rewritten graph, and what was done in words."""
        if not self.is_changed:
            return self.graph, ()
        notes = [f"in float32, between Dequantize and Quantize: {line}" for line in _count_reasons(self.reasons)]
        counts = ((self._packed_count, "weight", "stay integers, before a Dequantize, for operators in float"),
                (self._constant_count, "quantized constant", "are float32, for operators in float"))  # fmt: skip
        return self.finish(), (*notes, *(format_count(count, noun, words) for count, noun, words in counts if count))

    def _visit(self, op: Op) -> None:
        """Isolate an operator if it has to be. Where the source's own kernels unpack constants, they go on to do so."""
        if kind_of(op).dequantizes and not self._keeps_packed and op.name not in self.graph.public:
            if packed := self._pack_constant(*op.names):
                if packed != op.inputs[0]:
                    self.replace(op, replace(op, inputs=(packed,)))
                return
            if (data := self.graph[op.inputs[0]]).is_constant and data.is_quantized:
                self._define_real(data, op.name)
                self.remove(op)
                return
        if not (reason := self._reason(op)):
            return
        self.reasons.append((op, reason))
        if any(map(self.graph.is_quantized, op.names)):
            inputs = [self._emit_dequantize(name) if self.graph.is_quantized(name) else name for name in op.inputs]
            self.run_in_float(op, inputs, "real")

    def _emit_dequantize(self, name: str) -> str:
        if name not in self._real:
            self._real[name] = real = self.add_float(f"{name}/real_value", self.graph[name])
            if not self.graph[name].is_constant:
                self._unpack(name, real)
            elif packed := self._pack_constant(name, name):
                self._packed_count += 1
                self.emit(Op("Dequantize", (packed,), (real,)))
            else:
                self._define_real(self.graph[name], real)
        return self._real[name]

    def _unpack(self, name: str, real: str) -> None:
        """Emit a Dequantize; where float32 does not hold the largest steps of a mask, they are its largest number, not infinite, from which
        no scale leads back."""
        q, dtype = self.graph[name].quantization, self.graph[name].dtype
        low, high = integer_range(dtype) if "float" not in dtype else (0, 0)
        ends = 0.0 if q is None else max(float(np.abs((end - q.zero_point) * q.scale.astype(np.float64)).max()) for end in (low, high))
        if ends <= float(np.finfo(np.float32).max):
            self.emit(Op("Dequantize", (name,), (real,)))
            return
        whole = self.dequantize(name, f"{name}/unlimited")
        limits = (("least", np.finfo(np.float32).min), ("most", np.finfo(np.float32).max))
        self.emit(Op("Clip", (whole, *(self.constant(f"{name}/{hint}", float(end)) for hint, end in limits)), (real,)))

    def _pack_constant(self, name: str, read: str) -> str:
        """Return a constant in the type that the target unpacks by itself; "" if it is none of those that stay integers.

        Weights do, and large matrices with a zero point that no kernel takes of weights (dynamic_range).

        Args:
            name: of the constant.
            read: the tensor that operators take, the constant itself or what a Dequantize makes of it.
        """
        tensor, wanted = self.graph[name], self._unpacked
        q, data = tensor.quantization, tensor.data
        if q is not None and q.block_size:
            return self._pack_blocks(tensor)
        if q is None or data is None or not wanted or (self._symmetric and not q.is_symmetric):
            return ""
        if read not in self._weights and not (data.ndim == 2 and data.size >= _LARGE and not q.is_symmetric):
            return ""
        if tensor.dtype == wanted or name in self._stored:
            return self._stored.get(name, name)
        if tensor.dtype not in _BYTES:
            return ""
        is_other_sign = tensor.dtype == UNSIGNED.get(wanted)
        stored = shift_to_dtype(tensor, wanted) if is_other_sign else replace(tensor, dtype=wanted, data=data.astype(numpy_dtype(wanted)))
        self._stored[name] = self.add(f"{name}/{wanted}", stored, data=stored.data)
        return self._stored[name]

    def _pack_blocks(self, tensor: Tensor) -> str:
        """Return weights with a scale for each block as integers less their zero points, in the narrowest type that holds them.

        "" if no type holds them. Runtimes require whole blocks and positive scales; "" for others.
        """
        q, data, name = tensor.quantization, tensor.data, tensor.name
        if q is None or q.axis is None or data is None or name in self._stored or not data.size or "float" in tensor.dtype:
            return self._stored.get(name, "")
        if data.shape[q.axis] % q.block_size or not (q.scale > 0).all():
            return ""
        steps = tensor.steps()
        for dtype in self._unpacked_blocks:
            if fits_dtype(steps, dtype):
                stored = {"dtype": dtype, "data": steps.astype(numpy_dtype(dtype)), "quantization": replace(q, zero_point=q.zero_point * 0)}
                is_kept = dtype == tensor.dtype and q.is_symmetric
                self._stored[name] = name if is_kept else self.add(f"{name}/{dtype}", tensor, **stored)
                return self._stored[name]
        return ""

    def _define_real(self, tensor: Tensor, name: str) -> None:
        """Give a name the float values of a quantized constant, each rounded once to the name's type."""
        dtype = self[name].dtype
        self.define(Tensor(name, dtype, tensor.shape, tensor.float_values().astype(numpy_dtype(dtype))))
        self._constant_count += 1


_FEW_BITS = ("int2", "uint2", "int4", "uint4")


def movement_in_float(graph: Graph, target: Target | None) -> PassResult:
    """Put each such operator between Dequantize and Quantize; of few bits, what one gives to the next is not quantized between them."""
    rewriter = Rewriter(graph)
    every = target is not None and target.storage.moves_in_float
    reals: dict[str, str] = {}  # quantized data -> the same values in float32

    def emit_dequantize(name: str, op: Op) -> str:
        if name not in reals:
            reals[name] = rewriter.dequantize(name, f"{name}/moved", op.source)
        return reals[name]

    moved: list[str] = []
    for op in rewriter:
        if not _moves_in_float(graph, op, every):
            continue
        inputs = [emit_dequantize(name, op) if graph.is_quantized(name) else name for name in op.inputs]
        results = rewriter.run_in_float(op, inputs, "moved")
        pairs = [(name, real) for name, real in zip(op.outputs, results, strict=True) if name != real]
        if kind_of(op).rule == "move" and not every:  # what is moved has its quantization already
            reals.update(pairs)
            moved += [name for name, _ in pairs]
    for name in moved:
        if name not in graph.public and all(map(rewriter.is_replaced, rewriter.readers[name])):
            rewriter.relate(name, reals[name])
    what = "data" if every else "data of 2 or 4 bits"
    return rewriter.finish_with(
        lambda count: f"moved, selected or compared in float by {format_count(count, 'operator')}: {what}",
        prune=True,
    )


def _moves_in_float(graph: Graph, op: Op, every: bool) -> bool:
    kind = kind_of(op)
    if (kind.transposes and not every) or not (kind.rule in ("move", "index") or kind.chooses or kind.clips or kind.layout.sized):
        return False
    return any(graph.is_quantized(name) and (every or graph[name].dtype in _FEW_BITS) for name in op.names)


_SOFTMAXES = ("Softmax", "LogSoftmax")


def clip_before_quantize(graph: Graph, target: Target | None) -> PassResult:
    """Put a quantized Softmax, and a Requantize to another type, between Dequantize, Clip and Quantize."""
    if target is not None and target.accelerator is not None:
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind(*_SOFTMAXES, "Requantize"):
        data, result = graph[op.inputs[0]], graph[op.name]
        is_conversion = op.kind == "Requantize"
        if not (data.is_quantized and result.is_quantized) or (is_conversion and (data.dtype == result.dtype or not result.per_tensor)):
            continue
        values = rewriter.dequantize(data.name, f"{data.name}/real", op.source)
        if is_conversion:
            low, high = affine_range(result.require_quantization(), result.dtype)
            bounds = [low.item(), high.item()]
        else:
            computed = rewriter.add_float(f"{result.name}/values", result)
            rewriter.emit(replace(op, attributes=drop_keys(op.attributes, "arithmetic"), inputs=(values,), outputs=(computed,)))
            values, bounds = computed, [bound if math.isfinite(bound) else None for bound in kind_of(op).interval(graph, op)]
        clip = rewriter.clip(values, bounds, rewriter.add_float(f"{result.name}/bounded", result), op.source)
        if not is_conversion and KERNELS["onnxruntime:optimized"].fault(graph, op):
            clip = replace(clip, kind="Min", inputs=(values, clip.inputs[2]))
        rewriter.replace(op, clip, op.derive("Quantize", (clip.name,), (result.name,)))
    for op in rewriter.of_kind("Quantize") if SOURCE_KERNELS in graph.metadata else ():
        result = graph[op.name]
        if result.per_tensor is not None and _is_product_of_float_weights(rewriter, op.inputs[0]):
            high = affine_range(result.per_tensor, result.dtype)[1].item()
            clip = rewriter.clip(op.inputs[0], [None, high], rewriter.add_float(f"{result.name}/bounded", result), op.source)
            clip = replace(clip, kind="Min", inputs=(op.inputs[0], clip.inputs[2]))
            rewriter.replace(op, clip, op.with_input(0, clip.name))
    return rewriter.finish_with(lambda count: f"{format_count(count, 'operator')} computed in float, and clipped")


def _is_product_of_float_weights(rewriter: Rewriter, name: str) -> bool:
    """Whether a tensor is a product of dequantized data and float weights, which onnxruntime rounds to int8 if a Quantize is next."""
    maker, graph = rewriter.producers.get(name), rewriter.graph
    if maker is None or not kind_of(maker).has_weights or not graph[maker.inputs[1]].is_constant or graph.is_quantized(maker.inputs[1]):
        return False
    data = rewriter.producers.get(maker.inputs[0])
    return data is not None and kind_of(data).dequantizes
