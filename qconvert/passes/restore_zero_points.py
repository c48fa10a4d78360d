"""restore_zero_points: activations whose zero points went by shift_to_symmetric get them back.

The reverse of shift_to_symmetric, for a file that notes its shifted tensors and their old zero points. It believes nothing: whatever
the note says, the graph computes what the file computes, up to float32 ties. Each noted tensor gets its zero point, and its float values
are smaller by scale * zero point for it; then

- biases of Conv and Gemm lose what the shifts of data and result had added to them, and data movement stays as it is;
- constants that were added to float values for the shifts' sake cancel: a float value is known as another one plus a constant until an
  operator reads it that adds none;
- every other operator reads, and writes, the shifted quantization after a Reinterpret.

uint8 inputs and outputs, which stand in the file as plain numbers, get scale and zero point again (passes/shifted_graph.py).
absorb_quantization then makes quantized operators of what ran in float between Dequantize and Quantize, and convolutions pad by
themselves again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import accumulator_quantization
from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, drop_keys, integer_range
from qconvert.graph.metadata import SHIFTED, read_entries
from qconvert.operators import kind_of
from qconvert.passes.absorb_quantization import absorb_quantization
from qconvert.passes.pads_and_dilations import fuse_pads
from qconvert.passes.shifted_graph import restore_unsigned
from qconvert.passes.shifted_operators import NUDGE, is_shift_invariant, is_ties_away_average, shift_of_sums
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Pattern, Rewriter, find_matches
from qconvert.rules.changed_values import redeclare_changes

#: What is left of two constants that cancel, as a share of them: both are rounded to float32.
_CANCELLED = 2.0**-20
_NUDGED_AVERAGE = Pattern("Quantize", Pattern("Mul", Pattern("AveragePool", name="average"), NUDGE), name="last")
#: Steps of a bias that float32 may have rounded away while it is still sure which integer it was.
_SURE = 0.25


def restore_zero_points(graph: Graph, target: Target | None) -> PassResult:
    """Restore what the metadata note; the note counts the activations."""
    if SHIFTED not in graph.metadata:
        return graph, ()
    points = _read_zero_points(graph)
    metadata = drop_keys(graph.metadata, SHIFTED)
    restoring = _Restoring(graph, points)
    for op in restoring if points else ():
        restoring.remove(op)
        restoring.visit(op)
    restored = restoring.finish(metadata=metadata)
    whole = restore_unsigned(restored)
    if whole is restored and not points:
        return whole, ()
    absorbed, _ = absorb_quantization(whole, target)
    changed, _ = fuse_pads(absorbed, lambda op: op.name.startswith(f"{op.inputs[0]}/padded") and len(op.inputs) == 2)
    said = (
        (f"{format_count(len(points), 'activation', 'have')} the zero points again that they had before shift_to_symmetric",)
        if points
        else ()
    )
    return redeclare_changes(graph, changed), said


def _read_zero_points(graph: Graph) -> dict[str, int]:
    """Return the zero points that the metadata note, of tensors that can have them."""
    found = {}
    for name, point in read_entries(graph.metadata, SHIFTED).items():
        tensor = graph.tensors.get(name)
        quantization = None if tensor is None else tensor.per_tensor
        if tensor is None or quantization is None or type(point) is not int:
            continue
        low, high = integer_range(tensor.dtype) if "int" in tensor.dtype else (0, 0)
        if quantization.is_symmetric and low <= point <= high and point:
            found[name] = point
    return found


def _find_clip_zero_points(rewriter: Rewriter, points: Mapping[str, int]) -> dict[str, int]:
    """Return the zero points of what a Clip alone reads, with the same quantization, to give a tensor of which one is noted.

    Such Clips stand in float in the file, and get a quantization by absorb_quantization.
    """
    graph, found = rewriter.graph, {}
    for op in graph.of_kind("Clip"):
        name, result = op.inputs[0], op.name
        if result not in points or name in points or not rewriter.is_read_once(name):
            continue
        if (
            graph[name].is_quantized
            and graph[name].shares_quantization(graph[result])
            and all(not end or graph[end].data is not None for end in op.inputs[1:])
        ):
            found[name] = points[result]
    return found


def _bias(old: Tensor, real: Array, data: Quantization | None, weights: Quantization) -> Tensor:
    """Return a bias of these float values: the int32 of the source if the file's float32 determines them."""
    assert old.data is not None
    if data is not None and not weights.block_size:
        quantization = accumulator_quantization(data, weights)
        steps = real / quantization.scale.astype(np.float64)
        whole = np.rint(steps)
        rounding = np.spacing(np.abs(old.data).astype(np.float32)).astype(np.float64) / quantization.scale
        if (rounding < _SURE).all() and (np.abs(steps - whole) <= rounding).all() and (np.abs(whole) < 2**31).all():
            return Tensor(old.name, "int32", old.shape, whole.astype(np.int32), quantization)
    return replace(old, data=real.astype(np.float32))


class _Restoring(Rewriter):
    """What stands for the tensors of a graph while they get their zero points back. All operators are emitted."""

    def __init__(self, graph: Graph, points: Mapping[str, int]) -> None:
        super().__init__(graph)
        self._points = {**points, **_find_clip_zero_points(self, points)}
        self._called: dict[str, str] = {}  # a tensor that is another one now
        self._added: dict[str, tuple[str, float]] = {}  # float value -> another one, and what that is short of it
        self._raw: dict[str, str] = {}  # tensor -> the same integers with the quantization that the file has
        self._made_of: dict[str, str] = {}  # float value -> the tensor that it is of
        self._averages = {match.named["average"].name: match for match in find_matches(self.graph, _NUDGED_AVERAGE)}
        self._away: set[str] = set()  # averages times the factor that takes ties away from zero
        for name, point in self._points.items():
            tensor = self.graph[name]
            quantization = replace(tensor.require_quantization(), zero_point=np.array([point], np.int64))
            self.define(replace(tensor, quantization=quantization), shift=0)
        self._ends = self._twins()

    def _twins(self) -> dict[str, str]:
        """Return the input or output of the graph that a Reinterpret makes of a shifted tensor, or that of it, by the name of the tensor.

        It has the same quantization, or an input without one.
        """
        known, found = set(self._points), dict[str, str]()
        for op in self.graph.of_kind("Reinterpret"):
            for name, end in ((op.inputs[0], op.name), (op.name, op.inputs[0])):
                own, other = self[name], self.graph[end]
                if name not in known or end in self._points or name in self.graph.public:
                    continue
                is_plain_input = other.quantization is None and other.dtype == own.dtype and [*self.readers[end]] == [op]
                if own.shares_quantization(other) or (is_plain_input and end in self.graph.inputs):
                    found[name] = end
                    known.add(self.define(replace(other, quantization=own.quantization), shift=0))
                    self.relate(name, end, shift=0)
        return found

    def visit(self, op: Op) -> None:
        """Emit what an operator becomes."""
        inputs, outputs = (tuple(self._called.get(name) or self._ends.get(name, name) for name in side) for side in (op.inputs, op.outputs))
        kind = kind_of(op)
        if kind.rule == "relabel" and inputs == outputs:
            return
        touched = any(name in self._points for name in op.names)
        if kind.has_weights and kind.sums_all_weights and touched and self._linear(op, inputs, outputs):
            return
        if kind.dequantizes and op.inputs[0] in self._points:
            self._dequantize(op, inputs[0])
        elif kind.quantizes and op.name in self._points:
            self._quantize(op, inputs[0], outputs[0])
        elif op.kind == "Clip" and self._points.get(op.inputs[0]) == self._points.get(op.name, 0):
            self.emit(replace(op, inputs=(inputs[0], *(self._bound(op, name) for name in inputs[1:])), outputs=outputs))
        elif touched and self._is_shift_invariant(op):
            self.emit(replace(op, inputs=self._restore_constants(op, inputs), outputs=outputs))
        elif not (touched and self._requantize(op, inputs, outputs)) and not self._average(op) and not self._sum(op, inputs):
            self._emit_as_in_file(op, inputs, outputs)

    def _shift(self, name: str) -> float:
        """Return by how much the file's float values of a tensor are larger."""
        return self.graph[name].require_quantization().step * self._points[name] if name in self._points else 0.0

    def _linear(self, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bool:
        """Take the shifts out of a bias; return whether that could be done."""
        data, weights = self.graph[op.inputs[0]], self.graph[op.inputs[1]]
        old = self.graph[op.inputs[2]] if op.has(2) else None
        is_clipped = op.name in self._points and op.attributes.get("activation")  # an unshifted result is bounded as before
        is_unsound = "pads" in op.attributes and op.inputs[0] in self._points and (any(op["pads"]) or op["auto_pad"] != "NOTSET")
        if not data.is_quantized or weights.data is None or weights.quantization is None or is_unsound or is_clipped:
            return False
        if old is None or old.data is None or old.dtype != "float32" or (outputs[0] not in self._points and op.name in self._points
                                                                         and op.name not in self._ends):  # fmt: skip
            return False
        added = shift_of_sums(op, weights, self._shift(op.inputs[0]), self._shift(op.name))
        bias = old.data.astype(np.float64) - added
        nothing = np.abs(bias) <= np.abs(np.broadcast_to(added, bias.shape)) * _CANCELLED
        if nothing.all():
            self.emit(replace(op, inputs=inputs[:2], outputs=outputs))
            return True
        made = _bias(old, bias, data.quantization, weights.quantization)
        name = self.replace_constant(old.name, made, f"{old.name}/restored")
        self.emit(replace(op, inputs=(*inputs[:2], name), outputs=outputs))
        return True

    def _is_shift_invariant(self, op: Op) -> bool:
        """Whether an operator gives the same integers with the zero points back, all its sides having one."""
        kind = kind_of(op)
        sides = [name for name in (*kind.data(op), *kind.results_of(op)) if self.graph.is_quantized(name)]
        found = {self._points.get(name) for name in sides if not self.graph[name].is_constant}
        return len(found) == 1 and None not in found and is_shift_invariant(self.graph, op)

    def _restore_constants(self, op: Op, inputs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the inputs of a move: constants among the data with the quantization that the rest has; a filler that is real zero is
        none."""
        data = next(name for name in kind_of(op).data(op) if name in self._points)
        quantization, point = self[data].quantization, self._points[data]
        changed = list(inputs)
        for position in kind_of(op).positions(op, "data", "factor", "filler"):
            tensor = self.graph[op.inputs[position]] if op.inputs[position] else None
            if tensor is None or tensor.data is None or not tensor.is_quantized:
                continue
            if kind_of(op).role(position) == "filler" and (tensor.data == point).all():
                changed[position] = ""
            else:
                changed[position] = self.add(f"{tensor.name}/restored", tensor, data=tensor.data, quantization=quantization)
        while changed and not changed[-1]:
            changed.pop()
        return tuple(changed)

    def _bound(self, op: Op, name: str) -> str:
        """Return a bound of a Clip of stored integers without the shift; one that is real zero is 0."""
        tensor = self.graph[name] if name else None
        if tensor is None or tensor.data is None:
            return name
        shift = self._shift(op.inputs[0])
        bound = tensor.data.astype(np.float64) - shift
        bound = np.where(np.abs(bound) <= abs(shift) * _CANCELLED, 0.0, bound)
        return self.constant(f"{name}/restored", bound.astype(tensor.dtype))

    def _dequantize(self, op: Op, value: str) -> None:
        """Emit the float values without the shift, of which readers know what is missing."""
        result = self.graph[op.name]
        real = self.compute("Dequantize", (value,), f"{result.name}/restored", result, op.source)
        self._made_of[op.name] = op.inputs[0]
        self._settle(op.name, real, self._shift(op.inputs[0]), self._shift(op.inputs[0]))

    def _quantize(self, op: Op, value: str, output: str) -> None:
        base, missing = self._added.get(op.inputs[0], (value, 0.0))
        rest, shift = missing - self._shift(op.name), self._shift(op.name)
        if abs(rest) > max(abs(missing), abs(shift)) * _CANCELLED:
            base = self._add_constant(base, rest, self.graph[op.inputs[0]])
        self.emit(replace(op, inputs=(base,), outputs=(output,)))

    def _settle(self, name: str, base: str, missing: float, size: float) -> None:
        """Record that the float value `name` is `base` plus a constant; `size` is what that is made of."""
        missing = 0.0 if abs(missing) <= abs(size) * _CANCELLED else missing
        if name in self.graph.public or (abs(missing) > 0 and not np.isfinite(missing)):
            self.emit(Op("Identity", (self._add_constant(base, missing, self.graph[name]),), (name,)))
        elif not missing:
            self._called[name] = base
            self.relate(name, base)
        else:
            self._added[name] = base, missing

    def _add_constant(self, base: str, amount: float, like: Tensor) -> str:
        if not amount:
            return base
        return self.compute("Add", (base, self.constant(f"{like.name}/constant", amount)), f"{like.name}/sum", like)

    def _average(self, op: Op) -> bool:
        """Emit an average whose ties the factor after it takes away from zero, or that factor; return whether it is one."""
        if op.name in self._away:
            self._added[op.name] = self._added[op.inputs[0]]
            return True
        match = self._averages.get(op.name)
        known = self._added.get(op.inputs[0]) if match is not None else None
        if match is None or known is None or op.inputs[0] not in self._made_of:
            return False
        last = match.named["last"]
        whole = replace(op.with_attributes(arithmetic="ties_away"), inputs=(self._made_of[op.inputs[0]],), outputs=last.outputs)
        if not is_ties_away_average(self, whole):
            return False
        result = self.add(f"{op.name}/restored", self.graph[op.name])
        self.emit(replace(whole, inputs=(known[0],), outputs=(result,)))
        self._added[op.name] = result, known[1]
        self._away.update(last.inputs)
        return True

    def _sum(self, op: Op, inputs: tuple[str, ...]) -> bool:
        """Emit an addition or subtraction of values that are known as others plus a constant; return whether it is one."""
        sign = kind_of(op).sum_sign
        if not sign or op.attributes.get("activation"):
            return False
        readers = self.readers[op.name]
        before_rounding = bool(readers) and all(kind_of(reader).quantizes and reader.name in self._points for reader in readers)
        if not any(name in self._added for name in op.inputs) and not before_rounding:
            return False
        parts = [self._part(name, own) for name, own in zip(op.inputs, inputs, strict=True)]
        missing, sizes = parts[0][1] + sign * parts[1][1], max(abs(part[1]) for part in parts)
        if parts[0][0] and parts[1][0]:
            result = self.add(f"{op.name}/restored", self.graph[op.name])
            self.emit(replace(op, inputs=(parts[0][0], parts[1][0]), outputs=(result,)))
            self._settle(op.name, result, missing, sizes)
            return True
        if not parts[0][0]:  # a constant less a value
            return False
        self._settle(op.name, parts[0][0], missing, sizes)
        return True

    def _requantize(self, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bool:
        """Emit a number added to stored integers on the way to another quantization, which both shifts may be all of; return whether it is
        one."""
        data, sign = [name for name in op.inputs if self.graph[name].is_quantized], kind_of(op).sum_sign
        is_sum = sign > 0 or (sign < 0 and data == [op.inputs[0]])
        if not is_sum or op.attributes.get("activation") or len(data) != 1 or not self.graph[op.name].is_quantized:
            return False
        number = self.graph[op.inputs[1 - op.inputs.index(data[0])]]
        if number.data is None or number.data.size != 1 or number.dtype != "float32" or len(number.data.shape) > 1:
            return False
        added = float(number.data.flat[0]) * sign
        before, following = self._shift(data[0]), self._shift(op.name)
        rest, value = before + added - following, inputs[op.inputs.index(data[0])]
        if abs(rest) <= max(abs(before), abs(added), abs(following)) * _CANCELLED:
            self.emit(op.derive("Requantize", (value,), outputs))
        else:
            constant = self.constant(f"{op.name}/constant", rest)
            self.emit(replace(op, kind="Add", inputs=(value, constant), outputs=outputs))
        return True

    def _part(self, name: str, own: str) -> tuple[str, float]:
        """Return an operand as a value plus a number; "" for a constant that is one number."""
        tensor = self.graph[name]
        if tensor.data is not None and tensor.data.size == 1 and tensor.dtype == "float32":
            return "", float(tensor.data.flat[0])
        return self._added.get(name, (own, 0.0))

    def _emit_as_in_file(self, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        """Emit an operator with the quantizations and float values that the file has."""
        given = [self._value_in_file(name, own) for name, own in zip(op.inputs, inputs, strict=True)]
        after, results = [], []
        for name, own in zip(op.outputs, outputs, strict=True):
            if name not in self._points:
                results.append(own)
                continue
            raw = self.add(f"{name}/as_shifted", self.graph[name])
            results.append(raw)
            after.append(Op("Reinterpret", (raw,), (own,)))
        for item in (replace(op, inputs=tuple(given), outputs=tuple(results)), *after):
            self.emit(item)

    def _value_in_file(self, name: str, own: str) -> str:
        if name in self._added:
            base, missing = self._added[name]
            if name not in self._raw:
                self._raw[name] = self._add_constant(base, missing, self.graph[name])
                self.relate(name, self._raw[name])
        elif name in self._points and name not in self._raw:
            self._raw[name] = self.compute("Reinterpret", (own,), f"{name}/as_shifted", self.graph[name])
        return self._raw.get(name, own)
