"""match_rounding: operators give the integers of the source's kernels, where the target's would round otherwise.

Rows of kernels say what the source gives (kernels/). What takes one or two tensors of 8 bits is simply tried on all inputs: for about half
of all additions XNNPACK's 20-bit multipliers and onnxruntime's float32 are equal on all 65,536 pairs. Of the rest, as of 16-bit arithmetic,
means, sums over axes and roots, the row names a form, which the attribute `arithmetic` asks of the format's writer: ONNX's gives additions
other input scales (arithmetic/additions.py) or writes the arithmetic out in float64, PyTorch's in int64; 16-bit convolutions become two in
float32, where the sums of either half of the data are exact; means are made of integers, and Softmaxes of few elements of sums in order.
Requantizations and LeakyRelus become a LeakyRelu with another scale and slope (kernels/litert/forms.py), which onnxruntime runs as a table
of 256, about as fast as a plain requantization. It also keeps roundings one after the other apart, which onnxruntime's optimizer merges to
one with other integers. With numerics "strict" the other functions of one tensor of 8 bits follow, as a Gather of what the kernel gives,
which takes ten times as long (docs/measured/forms.md). With numerics "fast" nothing is done.

Operators of PyTorch's engines, which a reader notes at them, get forms that give the same integers in onnxruntime and LiteRT
(TorchRounding). Averages, interpolations and first roundings: see rewriting/torch_forms.py. Additions are tried on all 65,536 pairs of
integers, and get other input scales where these differ (arithmetic/additions.py). Where LiteRT's addition, which computes with multipliers
of 20 bits, has no such scales, it becomes one of float values. Of an ONNX file that, and the division of float inputs by their scale, are
forms of numerics "strict" alone: accelerators of phones take integers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import ADDITIONS, TORCH_AVERAGES, nudge_add_scales, nudge_float_scales, nudge_xnnpack_scales
from qconvert.arithmetic.storage import EXACT_IN_FLOAT32
from qconvert.errors import format_counts
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, count_kinds, drop_keys, integer_range
from qconvert.graph.metadata import SOURCE_KERNELS, STATED_ATTRIBUTES
from qconvert.kernels import Kernel, Kernels
from qconvert.kernels.kernel import activated_range
from qconvert.kernels.onnxruntime import is_left_in_float
from qconvert.kernels.products import along_channels
from qconvert.kernels.proofs import Side, agree_for_all, find_float_limits, integers_for_all
from qconvert.kernels.torch_forms import TORCH_ROUNDINGS, addition_quantizations, adds_as_litert, has_torch_form
from qconvert.operators import has_onnx_addition, is_onnxruntime_add, kind_of
from qconvert.passes.missing_operators import Tables
from qconvert.passes.stored_types import shift_to_dtype
from qconvert.plugins import PassResult, Target, kernels_of_source, runtime_of
from qconvert.rewriting import Rewriter
from qconvert.rewriting.torch_forms import TorchForms, find_copied

_BYTES = ("int8", "uint8")
#: Kinds for which LiteRT's integer kernels compute with fewer bits than PyTorch's float32 (docs/measured/kernels.md).
_COARSE = ("LeakyRelu", "HardSwish")


def drop_torch_rounding(graph: Graph) -> Graph:
    """Return the graph without the roundings of PyTorch's engines, as of a source whose kernels nobody knows."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        rewriter.replace(op, _drop_arithmetic(op))
    return rewriter.finish(metadata=drop_keys(graph.metadata, SOURCE_KERNELS))


def _drop_arithmetic(op: Op) -> Op:
    known = op.attributes.get("arithmetic") in (*TORCH_AVERAGES, *ADDITIONS, *TORCH_ROUNDINGS)
    return op.with_attributes(arithmetic="") if known else op


def _nudge_operands(rewriter: Rewriter, graph: Graph, own: Side, wanted: Array, target: Target) -> bool:
    """Give an operator of two tensors of 8 bits input scales with which the target's kernel gives the integers of its own for all pairs,
    `wanted`; return whether there are such. `graph` is what _cut_out() gives."""
    op, sides = own[1], [graph[name] for name in own[1].inputs]
    if wanted.ndim != 2 or len({*op.inputs}) != 2 or (kind_of(op).sum_sign and any(tensor.is_constant for tensor in sides)):
        return False
    for quantizations in _list_scales(graph, op, wanted, target.format):
        moved = [replace(tensor, quantization=each) for tensor, each in zip(sides, quantizations, strict=True)]
        if not all(_can_restate(rewriter, each, target) for each, tensor in zip(moved, sides, strict=True) if each != tensor):
            continue
        trial = graph.evolve(tensors=moved)
        if agree_for_all(own, _list_stored(trial, op, target)):
            names = [_restate(rewriter, op, each) for each in moved]
            rewriter.replace(op, replace(_drop_arithmetic(op), inputs=tuple(names)))
            return True
    return False


def _can_restate(rewriter: Rewriter, tensor: Tensor, target: Target) -> bool:
    """Whether a format has room for another scale of a tensor's integers: of inputs of an ONNX file only their readers state one."""
    return target.format != "onnx" or tensor.is_constant or rewriter.is_computed(tensor.name)


def _restate(rewriter: Rewriter, op: Op, moved: Tensor) -> str:
    """Return a name for the integers of an operand of an operator that reads them with other quantization parameters."""
    if moved == rewriter[moved.name]:
        return moved.name
    return rewriter.compute("Reinterpret", (moved.name,), f"{op.name}/nudged", moved, op.source)


def _add_in_float(rewriter: Rewriter, op: Op, wanted: Array) -> bool:
    """Let a sum or difference of two tensors of 8 bits be one of float values, which LiteRT quantizes to certain integers for all pairs,
    with the inputs' own scales or others; return whether there are such."""
    tensors = [rewriter[name] for name in op.names]
    first, second, output = (tensor.per_tensor for tensor in tensors)
    if wanted.shape != (256, 256) or first is None or second is None or output is None or any(tensor.is_constant for tensor in tensors):
        return False
    limits = activated_range(rewriter.graph, op)
    found = nudge_float_scales(wanted, (first, second), output, tensors[2].dtype, limits, kind_of(op).sum_sign)
    if found is None:
        return False
    reals = []
    for tensor, quantization in zip(tensors[:2], found, strict=True):
        name, moved = tensor.name, replace(tensor, quantization=quantization)
        if moved.quantization != tensor.quantization:
            name = rewriter.compute("Reinterpret", (name,), f"{op.name}/nudged", moved, op.source)
        reals.append(rewriter.dequantize(name, f"{tensor.name}/real", op.source))
    rewriter.run_in_float(op, reals, "real", arithmetic="")
    return True


def _cut_out(rewriter: Rewriter, op: Op) -> Graph:
    """Return an operator and those that write its operands, through data movement, as a graph in which many scales are tried quickly.

    Nothing else of a network says which integers a kernel gives for two operands.
    """
    ops, names = [op], list(op.inputs)
    for name in names:
        writer = rewriter.producers.find(name)
        if writer is not None:
            ops.append(writer)
            names += writer.inputs[:1] if kind_of(writer).rule in ("move", "relabel") else ()
    graph = rewriter.graph
    tensors = {name: graph[name] for item in ops for name in item.names if name}
    inputs, outputs = (tuple(name for name in names if name in tensors) for names in (graph.inputs, graph.outputs))
    return Graph(graph.name, tensors, tuple(reversed(ops)), inputs, outputs, metadata=graph.metadata)


def _list_stored(graph: Graph, op: Op, target: Target) -> Iterator[Side]:
    """Yield the target's kernel of an operator for either type of 8 bits that the target may store it as: a zero point that joins before
    a rounding (QLinearMul) is another number then. TFLite's kernels compute on steps, which are the same."""
    tensors = {name: graph[name] for name in op.names if name}
    stored = graph[op.name].dtype
    is_of_bytes = len(op.inputs) == 2 and all(item.dtype == stored and item.is_quantized for item in tensors.values())
    for dtype in _BYTES if is_of_bytes and target.format != "tflite" else (stored,):
        restated = graph if dtype == stored else graph.evolve(tensors=[shift_to_dtype(tensor, dtype) for tensor in tensors.values()])
        yield restated, op, target.kernels.of(restated, op)


#: How many places of float32 a scale of a product is moved at most.
_PLACES = 12


def _list_next(quantization: Quantization) -> Iterator[Quantization]:
    """Yield quantization parameters with the scale itself and those a few places of float32 from it, the nearest first."""
    for place in sorted(range(-_PLACES, _PLACES + 1), key=abs):
        yield replace(quantization, scale=(quantization.scale.view(np.int32) + np.int32(place)).view(np.float32))


def _list_scales(graph: Graph, op: Op, wanted: Array, format: str) -> Iterator[tuple[Quantization, Quantization]]:
    """Yield quantizations next to those of two inputs: for sums those that a search finds, else scales of the constant, or the second, a
    few places on."""
    sides, (low, high) = [graph[name] for name in op.names], integer_range(graph[op.name].dtype)
    first, second, output = (tensor.per_tensor for tensor in sides)
    if first is None or second is None or output is None or len({tensor.dtype for tensor in sides}) > 1:
        return
    sign = kind_of(op).sum_sign
    if not sign:
        is_second = not sides[0].is_constant
        for moved in _list_next(second if is_second else first) if format == "onnx" else ():
            yield (first, moved) if is_second else (moved, second)
        return
    # A difference is a sum with the second input mirrored.
    mirrored = second if sign > 0 else replace(second, zero_point=low + high - second.zero_point)
    if format == "onnx":
        found = nudge_add_scales((first, mirrored), output, low)
    else:
        found = nudge_xnnpack_scales(wanted[:, ::sign], (first, mirrored), output, sides[2].dtype, activated_range(graph, op))
    if found is not None:
        yield found[0], replace(second, scale=found[1].scale)


def rounds_as_torch(op: Op) -> bool:
    """Whether an operator rounds as one of PyTorch's engines does."""
    return op.attributes.get("arithmetic") in (*TORCH_AVERAGES, "qnnpack", "fbgemm", *TORCH_ROUNDINGS)


def _bound_sums(data: Tensor, weights: Tensor) -> int:
    """Return what no sum of products exceeds."""
    low, high = integer_range(data.dtype)
    totals = np.abs(weights.steps()).sum(axis=tuple(range(1, weights.rank or 1)))
    return int(totals.max(initial=0)) * (high - low)


class TorchRounding(TorchForms):
    """Puts other operators in the place of those that round as PyTorch's engines do, and of additions and layers of theirs.

    ONNX's writer has the forms of TorchForms too, and TFLite's that of a first rounding, and they note what these stand for: there,
    operators stay as they are.
    """

    def __init__(self, graph: Graph, target: Target, keeps_biases: bool, integer_inputs: bool) -> None:
        super().__init__(graph, target.format)
        self._keeps_biases, self._target = keeps_biases, target
        #: Of additions that LiteRT's own kernel gives: what the file notes (STATED_ATTRIBUTES).
        self.stated: dict[str, dict[str, str]] = {}
        self._outside = frozenset(graph.inputs if integer_inputs else ())  # what the program around the network rounds

    def visit(self, op: Op) -> None:
        """Replace an operator by the form that rounds as its `arithmetic` says."""
        if op.attributes.get("arithmetic") in ADDITIONS:
            self._add_as(op)
        elif self._keeps_biases and kind_of(op).has_weights and self._run_layer_on_steps(op):
            self.done["layers in float, because their biases are float"] += 1
        elif kind_of(op).quantizes and op.inputs[0] in self._outside:
            self.replace(op, _drop_arithmetic(op))
        elif self._runtime == "tflite" and op.kind in _COARSE and self._is_8_bit(op) and not self.graph.is_from("tflite"):
            self.done["operators in float, because LiteRT's integer kernels are less exact than PyTorch's"] += 1
            data = self.dequantize(op.inputs[0], f"{op.inputs[0]}/real", op.source)
            self.run_in_float(op, (data, *op.inputs[1:]), "real")
        elif has_torch_form(op) and (self._runtime == "onnx" or kind_of(op).quantizes):
            forms = TorchForms(self.graph, self._runtime)  # left to the writer
            forms.visit(op)
            self.done += forms.done
        else:
            super().visit(op)

    def _run_layer_on_steps(self, op: Op) -> bool:
        """Let a layer with a float bias compute on steps of its data, in float; return whether its sums are exact so."""
        data, weights, bias, result = (self[name] for name in op.names) if op.has(2) else (None,) * 4
        if data is None or weights is None or bias is None or result is None or weights.data is None or bias.data is None:
            return False
        first, second, last = data.per_tensor, weights.quantization, result.per_tensor
        if first is None or second is None or last is None:
            return False
        if bias.dtype != "float32" or bias.quantization is not None or second.block_size or second.axis not in (None, 0):
            return False
        if op["activation"] not in ("", "relu") or _bound_sums(data, weights) >= EXACT_IN_FLOAT32:
            return False
        products, rank, name = first.scale * second.scale, result.rank or 2, result.name
        along = along_channels(op, rank) if products.size > 1 else ()
        of_steps = replace(data, quantization=replace(first, scale=np.ones_like(first.scale)))
        given = self.compute("Reinterpret", (data.name,), f"{name}/data_steps", of_steps, op.source)
        steps = replace(second, scale=np.ones_like(second.scale))
        factors = self.add(f"{name}/weights_steps", weights, data=weights.data, quantization=steps)
        reals = [self.dequantize(item, f"{name}/{hint}_reals", op.source) for item, hint in ((given, "data"), (factors, "weights"))]
        addends = self.constant(f"{name}/bias_steps", np.asarray(bias.data / products, np.float32))
        total = self.add_float(f"{name}/sum", result)
        self.emit(replace(op.with_attributes(activation=""), inputs=(*reals, addends), outputs=(total,)))
        scale = self.constant(f"{name}/scale", np.asarray((products / last.scale).reshape(along), np.float32))
        # In this order onnxruntime does not multiply the weights in advance (conv_mul_fusion.cc), which would round them.
        scaled = self.compute("Mul", (scale, total), f"{name}/scaled", self[total], op.source, activation=str(op["activation"]))
        whole = replace(result, quantization=Quantization.per_tensor(1.0, last.point))
        found = self.compute("Quantize", (scaled,), f"{name}/result_steps", whole, op.source)
        self.replace(op, op.derive("Reinterpret", (found,), op.outputs))
        return True

    def _add_as(self, op: Op) -> None:
        quantizations = addition_quantizations(self.graph, op, str(op["arithmetic"]))
        in_onnx = self._runtime == "onnx"  # where a note says the `arithmetic`
        # Whether the runtime's own kernel gives the same for all pairs of inputs.
        is_own = quantizations is not None and (
            is_onnxruntime_add(self.graph, op) if in_onnx else adds_as_litert(self.graph, op, str(op["arithmetic"]))
        )
        if quantizations is None or is_own:
            if not in_onnx:
                self.replace(op, _drop_arithmetic(op))
            if quantizations is not None and self._runtime == "tflite":
                self.stated[op.name] = {"arithmetic": str(op["arithmetic"])}
            return
        wanted = integers_for_all(self.graph, op, None) if self._runtime == "tflite" else None
        if wanted is not None and _nudge_operands(self, _cut_out(self, op), (self.graph, op, None), wanted, self._target):
            self.done["additions with other input scales, to round as PyTorch does for every pair of inputs"] += 1
            return
        decomposes = has_onnx_addition(self.graph, op) if in_onnx else wanted is not None and _add_in_float(self, op, wanted)
        if not decomposes:
            self.done["additions by another kernel, which rounds differently for a few of all pairs of inputs"] += 1
            if not in_onnx:
                self.replace(op, _drop_arithmetic(op))
            return
        self.done["additions decomposed, to round as PyTorch does for every pair of inputs"] += 1

    def _is_8_bit(self, op: Op) -> bool:
        """Whether data and result are of 8 bits with one scale each."""
        sides = [self.graph[name] for name in (*kind_of(op).data(op), *op.outputs)]
        return all(t.dtype in _BYTES and t.per_tensor is not None for t in sides)


#: Forms of ONNX alone: PyTorch's sums of float32 are in float64, or in the order of vectors.
_SUMS_IN_ORDER = ("tflite_softmax",)
_NOTES = {
    "xnnpack": "decomposed, to round as XNNPACK does for every pair of inputs",
    "xnnpack_line": "with another scale and slope, to round as XNNPACK does for every input",
    "xnnpack_qs8": "computed in integers and rounded as XNNPACK does",
    "xnnpack_qu8": "computed in integers and rounded as XNNPACK does",
    "tflite": "decomposed, to round as TFLite's own kernels do",
    "reciprocal": "as a product with the reciprocal of the scale, to round float values as XNNPACK does",
    "divided": "as a division by the scale, to round float values as onnxruntime does",
    "ties_up": "with ties up, as XNNPACK does",
    "tflite_softmax": "decomposed, to add exponentials as TFLite's kernel does",
    "tflite_hard_swish": "with another scale and slope, to round as TFLite's kernel does for every input",
}
_NUDGED = "with other input scales, to round as the source's kernels do for every pair of inputs"
_IN_FLOAT = "in float, to round as the source's kernels do for every pair of inputs"


def match_rounding(graph: Graph, target: Target, *, numerics: str = "exact", biases: str = "round", io: str = "") -> PassResult:
    """Mark the operators that the target would round otherwise than the source's kernels; rewrite those of PyTorch's."""
    source = graph.metadata.get(SOURCE_KERNELS, "")
    of_torch = source.startswith("torch:") or (graph.is_from("torch") and biases == "keep") or any(map(rounds_as_torch, graph.ops))
    graph, rewritten = _match_torch(graph, target, numerics, biases, io == "integer") if of_torch else (graph, ())
    found = kernels_of_source(graph) if numerics != "fast" else None
    if found is None and numerics != "fast" and graph.is_from("onnx") and target.format == "tflite":
        runtime, kernels = runtime_of("onnx")
        given = frozenset(() if io == "integer" else graph.inputs)
        rows = runtime.rows(kernels), runtime.rows("in_float")
        matched, notes = _match_onnxruntime(graph, rows, target, given, in_float=numerics == "strict")
        return matched, (*rewritten, *notes)
    if found is None or target.format in found[0].formats:
        return graph, rewritten
    # Of an output nothing else states the scale.
    outside = frozenset((*graph.outputs, *(graph.inputs if io == "integer" else ())))
    matched, notes = _match_kernels(graph, found[1], target, outside, tables=numerics == "strict")
    return matched, (*rewritten, *notes)


def _match_kernels(graph: Graph, rows: Kernels, target: Target, outside: frozenset[str], *, tables: bool) -> PassResult:
    rewriter, own = Tables(graph), target.kernels
    done: dict[str, list[Op]] = defaultdict(list)
    for op in rewriter:
        added = kind_of(op).rule == "convert" and not op.source  # by a pass, which no kernel of the source computes
        kernel = None if added or rounds_as_torch(op) else rows.of(graph, op)
        if kernel is None or not (kernel.arithmetic or tables or len(op.inputs) == 2):
            continue
        if kind_of(op).quantizes and (
            not outside.isdisjoint((op.inputs[0], op.name)) or _rounds_floats_alike(graph, op, kernel, own.of(graph, op))
        ):
            continue
        part, side = _cut_out(rewriter, op), (graph, op, kernel)
        is_kept_apart = own.merges_roundings and kernel.arithmetic is not None and _rounds_again(graph, op)
        if kernel.reference is not None and not is_kept_apart and agree_for_all(side, _list_stored(part, op, target)):
            continue
        values = integers_for_all(*side) if kernel.reference is not None else None
        arithmetic = kernel.arithmetic(graph, op) if kernel.arithmetic is not None else ""
        if arithmetic and not (arithmetic in _SUMS_IN_ORDER and target.format != "onnx"):
            rewriter.replace(op, op.with_attributes(arithmetic=arithmetic))
            done[_NOTES.get(arithmetic, f"decomposed, to round as {arithmetic} does")].append(op)
        elif target.format == "onnx" and values is not None and _nudge_operands(rewriter, part, side, values, target):
            done[_NUDGED].append(op)
        elif tables and values is not None and values.ndim == 1 and kind_of(op).rounds:
            rewriter.replace(op, *rewriter.lookup(op, op.inputs[0], values))
            done["as lookup tables, to round as the source's kernels do"].append(op)
    return rewriter.finish(), tuple(f"{text}: {format_counts(count_kinds(ops))}" for text, ops in done.items())


def _match_onnxruntime(graph: Graph, rows: tuple[Kernels, Kernels], target: Target, given: frozenset[str], *, in_float: bool) -> PassResult:
    """Give sums and differences of 8 bits other input scales where the target's kernel would round otherwise than the source's.

    Args:
        graph, target: as of match_rounding().
        rows: onnxruntime's kernels, and those of operators that its optimizer leaves in float.
        given: inputs that the network rounds.
        in_float: whether forms in float are wanted: other sums are of float values then, and the inputs are divided by their scale.
    """
    rewriter, done = Rewriter(graph), defaultdict[str, list[Op]](list)
    for op in rewriter:
        kernel = rows[bool(kind_of(op).sum_sign) and is_left_in_float(graph, op)].of(graph, op)
        if kernel is None or kernel.reference is None or op.attributes.get("arithmetic"):
            continue
        if kind_of(op).quantizes:
            if (
                in_float
                and find_copied(rewriter, op.inputs[0]) in given
                and _divides_inputs(graph, op, kernel, target.kernels.of(graph, op))
            ):
                rewriter.replace(op, op.with_attributes(arithmetic="divided"))
                done[_NOTES["divided"]].append(op)
        elif kind_of(op).sum_sign:
            side = graph, op, kernel
            if agree_for_all(side, _list_stored(graph, op, target)) or (wanted := integers_for_all(*side)) is None:
                continue
            if _nudge_operands(rewriter, _cut_out(rewriter, op), side, wanted, target):
                done[_NUDGED].append(op)
            elif in_float and _add_in_float(rewriter, op, wanted):
                done[_IN_FLOAT].append(op)
    return rewriter.finish(), tuple(f"{text}: {format_counts(count_kinds(ops))}" for text, ops in done.items())


def _divides_inputs(graph: Graph, op: Op, kernel: Kernel, other: Kernel | None) -> bool:
    """Whether float values divided by the scale become the integers of the source's kernel, and float values alone do not."""
    if kernel.arithmetic is None or kernel.arithmetic(graph, op) != "divided" or _rounds_floats_alike(graph, op, kernel, other):
        return False
    result = graph[op.name]
    assert result.per_tensor is not None
    of_steps = replace(result, quantization=Quantization.per_tensor(1.0, result.per_tensor.point))
    return _rounds_floats_alike(graph.evolve(tensors=[of_steps]), op, kernel, other)


def _rounds_floats_alike(graph: Graph, op: Op, kernel: Kernel, other: Kernel | None) -> bool:
    """Whether two kernels of an operator that quantizes float values give the same integers for all float32 numbers."""
    if other is None or other.reference is None:
        return False
    limits = [find_float_limits(graph, op, item) for item in (kernel, other)]
    return limits[0] is not None and limits[1] is not None and np.array_equal(limits[0], limits[1])


def _rounds_again(graph: Graph, op: Op) -> bool:
    """Whether an operator brings integers to another scale or zero point, and does nothing else."""
    sides = [graph[name] for name in (op.inputs[0], op.name)]
    ranges = [side.quantization.shift_zero_point(-integer_range(side.dtype)[0]) for side in sides if side.quantization is not None]
    return kind_of(op).rule == "convert" and len(ranges) == 2 and ranges[0] != ranges[1]


def _match_torch(graph: Graph, target: Target, numerics: str, biases: str, io_integer: bool) -> PassResult:
    if numerics == "fast":
        return drop_torch_rounding(graph), ()
    if target.format not in ("onnx", "tflite"):
        return graph, ()
    rounding = TorchRounding(graph, target, biases == "keep", io_integer)
    for op in rounding:
        rounding.visit(op)
    notes = tuple(f"{text}: {count}" for text, count in rounding.done.items())
    if not rounding.stated:
        return rounding.finish(), notes
    return rounding.finish(metadata={**graph.metadata, STATED_ATTRIBUTES: json.dumps(rounding.stated)}), notes
