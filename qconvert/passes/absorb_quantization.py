"""absorb_quantization: Quantize and Dequantize around operators on real values become quantized operators.

Exact: a quantized operator means the real-valued function of its dequantized inputs, rounded once onto its output's grid, which is what
Dequantize, operator, Quantize compute one after the other. Data movement commutes with both, so it moves the stored integers.

The steps, in order: constants behind a Quantize become integers; equal Quantize and Dequantize become one; then one walk over the
operators. Convolutions and matrix products take integers if both operands have them, other operators if their result ends on a grid;
data movement takes them always, and a Dequantize behind it keeps the real values for whoever still reads them. What is left of pairs
becomes a Requantize or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import clip_range, quantize, round_half_away, round_half_even
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, canonical_dtype, integer_range
from qconvert.known_values import KnownValues
from qconvert.ops import ACTIVATIONS, OPS
from qconvert.passes import remove_dead_code
from qconvert.passes.folding import evaluate_constant
from qconvert.plugins import Target
from qconvert.validation.quantization import is_axis_kept

__all__ = ["run"]

_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: Largest relative difference of a bias scale from input scale * weight scale: a few roundings of float32.
_BIAS_TOLERANCE = 1e-6


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Absorbs what can be absorbed exactly; the note counts the operators that became quantized."""
    if not any(op.kind in ("Quantize", "Dequantize", "Relu", "Clip") for op in graph.ops):
        return graph, ()
    graph = _merge_equal(_quantize_constants(_without_identities(graph)))
    absorber = _Absorber(graph)
    for op in graph.ops:
        absorber.visit(op)
    graph, _ = remove_dead_code.run(graph.evolve(tensors=absorber.tensors.values(), ops=absorber.ops), target)
    return graph, (f"{absorber.count} operators between Dequantize and Quantize are quantized",) if absorber.count else ()


def _without_identities(graph: Graph) -> Graph:
    """Values under one name each; an Identity (or a Cast to the same type) that gives an output of the graph its name stays."""
    renamed: dict[str, str] = {}
    ops: list[Op] = []
    for op in graph.ops:
        op = _renamed(op, renamed)
        is_same = op.kind in ("Identity", "Cast") and _is_same_grid(graph[op.inputs[0]], graph[op.outputs[0]])
        if is_same and op.outputs[0] not in graph.outputs:
            renamed[op.outputs[0]] = op.inputs[0]
        else:
            ops.append(op)
    return graph.evolve(ops=ops) if renamed else graph


def _quantize_constants(graph: Graph) -> Graph:
    """Weights that exporters keep as real values behind a Quantize: the integers that every runtime computes from them."""
    known = KnownValues(graph.tensors, graph.producers())
    changed: dict[str, Tensor] = {}
    for op in graph.ops:
        if op.kind != "Quantize":
            continue
        result = graph[op.outputs[0]]
        data = known.get(op.inputs[0])
        if data is None or result.quantization is None or result.dtype.startswith("float") or canonical_dtype(data.dtype) != "float32":
            continue
        changed[result.name] = replace(result, shape=data.shape, data=quantize(data, result.quantization, result.dtype))
    kept = (op for op in graph.ops if op.outputs[0] not in changed)
    return graph.evolve(tensors=changed.values(), ops=kept) if changed else graph


def _merge_equal(graph: Graph) -> Graph:
    """One Quantize for each value and grid, one Dequantize for each value: exporters write one for each reader."""
    first: dict[tuple[object, ...], str] = {}
    renamed: dict[str, str] = {}
    ops: list[Op] = []
    for op in graph.ops:
        op = _renamed(op, renamed)
        if op.kind in ("Quantize", "Dequantize"):
            result = graph[op.outputs[0]]
            key = (op.kind, op.inputs[0], result.dtype, _key(result.quantization))
            if key in first and result.name not in graph.outputs:
                renamed[result.name] = first[key]
                continue
            first.setdefault(key, result.name)
        ops.append(op)
    return graph.evolve(ops=ops)


def _key(q: Quantization | None) -> tuple[object, ...]:
    return () if q is None else (q.scale.tobytes(), q.zero_point.tobytes(), q.axis, q.block_size)


def _renamed(op: Op, names: dict[str, str]) -> Op:
    return replace(op, inputs=tuple(names.get(name, name) for name in op.inputs)) if names.keys() & set(op.inputs) else op


class _Absorber:
    """One walk over a graph. `ops` and `tensors` are those of the new graph, `count` the operators that became quantized."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._consumers = graph.consumers()
        self._known = KnownValues(graph.tensors, graph.producers())
        self._stored: dict[str, str] = {}  # real values -> the tensor of stored integers that they come from
        self._alias: dict[str, str] = {}
        self._gone: set[str] = set()
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.ops: list[Op] = []
        self.count = 0

    def visit(self, op: Op) -> None:
        """Takes the next operator over, in its new form."""
        op = _renamed(op, self._alias)
        if op.outputs and op.outputs[0] in self._gone:
            return
        if op.kind == "Dequantize" and self.tensors[op.outputs[0]].dtype == "float32":
            self._stored[op.outputs[0]] = op.inputs[0]
        elif op.kind == "Quantize":
            self._quantize(op)
            return
        elif self._moved(op) or self._absorbed(op) or self._clipped(op):
            return
        self.ops.append(op)

    def _quantize(self, op: Op) -> None:
        """A Quantize of values that came from integers: nothing if the grid is theirs, else a Requantize."""
        source, result = self._stored.get(op.inputs[0]), self.tensors[op.outputs[0]]
        if source is None:
            self.ops.append(op)
        elif source == result.name:
            return
        elif not _is_same_grid(self.tensors[source], result):
            self.ops.append(replace(op, kind="Requantize", inputs=(source,)))
        elif result.name in self._graph.outputs:
            self.ops.append(replace(op, kind="Identity", inputs=(source,)))
        else:
            self._alias[result.name] = source

    # data movement

    def _moved(self, op: Op) -> bool:
        """Moves integers instead of the real values behind a Dequantize, if all data have one grid."""
        spec = OPS[op.kind]
        if spec.rule != "move":
            return False
        count = len(op.inputs) if spec.data < 0 else spec.data
        extra = 3 if op.kind in ("ScatterND", "ScatterElements") else count
        data = [*range(count), *range(2, extra)]
        names = [self._stored.get(op.inputs[index], "") if op.inputs[index] else "" for index in data]
        first = self.tensors[names[0]] if names and names[0] else None
        if first is None or first.quantization is None or not all(n and _is_same_grid(self.tensors[n], first) for n in names):
            return False
        filler = self._stored_filler(op, first) if op.kind == "Pad" else ""
        outputs = op.outputs[:1] if op.kind == "TopK" else op.outputs
        grids = [self._moved_grid(op, first, name) for name in outputs]
        if filler is None or any(grid is None for grid in grids):
            return False
        inputs = list(op.inputs)
        for index, name in zip(data, names, strict=True):
            inputs[index] = name
        if op.kind == "Pad":
            inputs[2:] = [filler] if filler else []
        if first.data is not None and len(outputs) == 1 and self._move_constant(op, first, grids[0], inputs):
            return True
        written = [self._integers(name, first.dtype, grid) for name, grid in zip(outputs, grids, strict=True) if grid is not None]
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=(*written, *op.outputs[len(written) :])))
        for real, stored in zip(outputs, written, strict=True):
            self._dequantize(stored, real, op)
        return True

    def _move_constant(self, op: Op, source: Tensor, grid: Quantization | None, inputs: Sequence[str]) -> bool:
        """Moves the integers of a constant now. The result takes the constant's name if nobody else reads it."""
        moved = replace(op, inputs=tuple(inputs))
        values = [self._data(name) if name else None for name in inputs]
        plain = {name: replace(self.tensors[name], quantization=None) for name in inputs if name}
        found = evaluate_constant(moved, plain, values)
        if found is None:
            return False
        real = op.outputs[0]
        alone = len(self._consumers.get(source.name, [])) == 1 == len(self._consumers.get(op.inputs[0], []))
        name = source.name if alone and source.name not in self._graph.outputs else self._integers(real, source.dtype, _known(grid))
        self.tensors[name] = Tensor(name, source.dtype, found[0].shape, found[0], grid)
        self._dequantize(name, real, op)
        return True

    def _data(self, name: str) -> Array | None:
        return self.tensors[name].data if name not in self._graph.tensors else self._known.get(name)

    def _moved_grid(self, op: Op, source: Tensor, output: str) -> Quantization | None:
        """The quantization of moved integers; None if scales along an axis do not survive the movement."""
        grid, shape = source.quantization, self._graph[output].shape
        assert grid is not None
        if grid.axis is None:
            return grid
        if op.kind == "Transpose":
            return grid.transposed(op["perm"])
        if grid.block_size or shape is None or source.shape is None:
            return grid if op.kind == "Identity" else None
        for axis in range(len(shape)):
            if is_axis_kept(self._graph, op, source.shape, shape, grid.axis, axis):
                return grid.with_axis(axis)
        return None

    def _stored_filler(self, op: Op, data: Tensor) -> str | None:
        """The padding value on the grid of the data: "" for real zero, None if it is not on the grid or not known."""
        if op["mode"] != "constant" or len(op.inputs) < 3 or not op.inputs[2]:
            return ""
        value, grid = self._known.get(op.inputs[2]), data.quantization
        if value is None or value.size != 1 or grid is None or not grid.is_per_tensor:
            return None
        real = float(value.reshape(-1)[0])
        stored = quantize(np.array([real], np.float32), grid, data.dtype)
        steps = np.float32(stored[0].astype(np.float32) - np.float32(grid.zero_point[0])) * grid.scale[0]
        if steps != np.float32(real):
            return None
        if stored[0] == grid.zero_point[0]:
            return ""
        return self._constant(f"{op.outputs[0]}/padding", data, stored.reshape(()))

    def _constant(self, wanted: str, like: Tensor, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
        from qconvert.graph import numpy_dtype

        name = self._graph.fresh_name(wanted, self.tensors)
        self.tensors[name] = Tensor(name, like.dtype, (), data.astype(numpy_dtype(like.dtype)), like.quantization)
        return name

    # operators on real values

    def _absorbed(self, op: Op) -> bool:
        """Gives an operator the integers behind its real inputs, and its result a grid, where both are there."""
        spec = OPS[op.kind]
        stored = [self._stored.get(name, "") for name in op.inputs]
        if not any(stored) or len(op.outputs) != 1:
            return False
        if spec.rule == "index":
            taken = stored if op.kind in ("ArgMax", "ArgMin") else [""]
        elif spec.rule != "real":
            return False
        elif op.kind in _LINEAR:
            taken = self._linear_inputs(op, stored)
        else:
            count = len(stored) if spec.data < 0 else spec.data
            taken = [*stored[:count], *[""] * (len(stored) - count)]
        if not any(taken):
            return False
        activation, result = self._activation(op)
        grid = self._grid(result) if spec.rule == "real" else None
        if grid is None and op.kind not in _LINEAR and spec.rule == "real":
            return False
        inputs = tuple(new or old for new, old in zip(taken, op.inputs, strict=True))
        op = replace(op, inputs=inputs)
        if grid is None or grid.quantization is None:
            self.ops.append(op)
        else:
            if activation:
                self._gone.add(result)
                op = _with_activation(op, grid, clip_range(grid, ACTIVATIONS[activation]))
            name = self._integers(result, grid.dtype, grid.quantization)
            op = replace(op, outputs=(name,))
            if not self._clipped(op):
                self.ops.append(op)
            self._dequantize(self._alias.get(name, name), result, op)
        self.count += 1
        return True

    def _clipped(self, op: Op) -> bool:
        """A Relu or Clip of integers on one grid: nothing if the grid is no wider, the activation of the operator before it, or a Clip
        whose bounds are on the grid."""
        bounds = self._bounds(op)
        source, result = self.tensors[op.inputs[0]], self.tensors[op.outputs[0]]
        q = source.quantization
        if bounds is None or q is None or not q.is_per_tensor or not _is_same_grid(source, result) or not _is_exact(bounds, source):
            return False
        limits = clip_range(source, bounds)
        if limits == integer_range(source.dtype) and result.name not in self._graph.outputs:
            self._alias[result.name] = source.name
            return True
        before = self._writer(source.name)
        if before is not None and any(clip_range(source, known) == limits for known in ACTIVATIONS.values()):
            self.ops[before] = replace(_with_activation(self.ops[before], source, limits), outputs=(result.name,))
            return True
        names = [
            self._scalar(f"{result.name}/{word}", np.float32(limit - q.zero_point[0]) * q.scale[0])
            for word, limit in zip(("lowest", "highest"), limits, strict=True)
        ]
        self.ops.append(Op("Clip", (source.name, *names), op.outputs, {}, op.source))
        return True

    def _writer(self, name: str) -> int | None:
        """The position of the operator that writes `name` for one reader alone and can take an activation; None if there is none."""
        if len(self._consumers.get(name, [])) > 1 or name in self._graph.outputs:
            return None
        for position in range(len(self.ops) - 1, max(len(self.ops) - 4, -1), -1):
            op = self.ops[position]
            if name in op.outputs:
                is_able = "activation" in OPS[op.kind].attributes and not op["activation"] and len(op.outputs) == 1
                return position if is_able else None
        return None

    def _scalar(self, wanted: str, value: np.float32) -> str:
        name = self._graph.fresh_name(wanted, self.tensors)
        self.tensors[name] = Tensor(name, "float32", (), np.array(value, np.float32))
        return name

    def _linear_inputs(self, op: Op, stored: Sequence[str]) -> list[str]:
        """The integers of data and weights if both have them and the kernels' arithmetic fits, with the bias if it has their scale."""
        if not (stored[0] and stored[1]):
            return [""] * len(stored)
        data, weights = (self.tensors[name] for name in stored[:2])
        assert data.quantization is not None and weights.quantization is not None
        along = weights.quantization.axis
        if not data.quantization.is_per_tensor or (op.kind != "MatMul" and along not in (None, 0) and not weights.quantization.block_size):
            return [""] * len(stored)
        if len(stored) > 2 and stored[2]:
            return [*stored[:2], stored[2] if self._is_accumulated(data, weights, self.tensors[stored[2]]) else ""]
        return list(stored)

    @staticmethod
    def _is_accumulated(data: Tensor, weights: Tensor, bias: Tensor) -> bool:
        """Whether a bias can be added to the sum of products: int32 with their scale, and zero point 0."""
        assert data.quantization is not None and weights.quantization is not None and bias.quantization is not None
        if bias.dtype != "int32" or not bias.quantization.is_symmetric or weights.quantization.block_size:
            return False
        exact = data.quantization.scale * weights.quantization.scale
        stated = bias.quantization.scale
        if stated.size not in (1, exact.size) and exact.size != 1:
            return False
        return bool(np.allclose(stated, exact, rtol=_BIAS_TOLERANCE, atol=0))

    def _activation(self, op: Op) -> tuple[str, str]:
        """The activation behind an operator that it can take over on the grid of the result, and the name of the real result."""
        name = op.outputs[0]
        readers = self._consumers.get(name, [])
        if "activation" not in OPS[op.kind].attributes or op["activation"] or len(readers) != 1 or name in self._graph.outputs:
            return "", name
        bounds = self._bounds(readers[0])
        found = next((key for key, value in ACTIVATIONS.items() if key and value == bounds), "")
        result = readers[0].outputs[0]
        grid = self._grid(result) if found else None
        return (found, result) if grid is not None and bounds is not None and _is_exact(bounds, grid) else ("", name)

    def _bounds(self, op: Op) -> tuple[float | None, float | None] | None:
        """The bounds of a Relu or of a Clip with known ones, else None."""
        if op.kind == "Relu":
            return 0.0, None
        if op.kind != "Clip":
            return None
        values = [self._known.get(name) if name else None for name in (*op.inputs[1:], "", "")[:2]]
        if any(name and value is None for name, value in zip(op.inputs[1:], values, strict=False)):
            return None
        lower, upper = (None if value is None else float(value.reshape(-1)[0]) for value in values)
        return lower, upper

    def _grid(self, name: str) -> Tensor | None:
        """The one grid on which every reader puts the real value `name`, at once or after moving or clipping it; None without one."""
        pending, found, seen = [name], None, 0
        while pending:
            current = pending.pop()
            readers = self._consumers.get(current, [])
            if not readers or current in self._graph.outputs or seen > 64:
                return None
            seen += 1
            for reader in readers:
                result = self._graph[reader.outputs[0]]
                if reader.kind == "Quantize":
                    if result.quantization is None or not result.quantization.is_per_tensor:
                        return None
                    if found is not None and not _is_same_grid(found, result):
                        return None
                    found = result
                elif _moves_one(reader) or self._bounds(reader) is not None:
                    pending.append(result.name)
                else:
                    return None
        return found if found is not None and self._clips_exactly(name, found) else None

    def _clips_exactly(self, name: str, grid: Tensor) -> bool:
        """Whether clipping integers gives what clipping the real values before rounding gives, for every Clip behind `name`."""
        pending = [name]
        while pending:
            for reader in self._consumers.get(pending.pop(), []):
                bounds = self._bounds(reader)
                if bounds is not None and not _is_exact(bounds, grid):
                    return False
                if reader.kind != "Quantize":
                    pending.append(reader.outputs[0])
        return True

    def _integers(self, real: str, dtype: str, grid: Quantization) -> str:
        """A tensor for the stored integers of `real`: the result of a Quantize of just this grid, or one with a new name."""
        shape = self._graph[real].shape
        wanted = Tensor(f"{real}/{dtype}", dtype, shape, None, grid)
        for reader in self._consumers.get(real, []):
            result = self._graph[reader.outputs[0]]
            if reader.kind == "Quantize" and _is_same_grid(result, wanted):
                self.tensors[result.name] = replace(result, shape=shape if result.shape is None else result.shape)
                return result.name
        name = self._graph.fresh_name(wanted.name, self.tensors)
        self.tensors[name] = replace(wanted, name=name)
        return name

    def _dequantize(self, stored: str, real: str, op: Op) -> None:
        self.ops.append(Op("Dequantize", (stored,), (real,), {}, op.source))
        self._stored[real] = stored


def _known(grid: Quantization | None) -> Quantization:
    assert grid is not None
    return grid


def _moves_one(op: Op) -> bool:
    """Whether an operator moves one tensor and nothing else, so that rounding before or after it is the same."""
    return (
        OPS[op.kind].rule == "move"
        and OPS[op.kind].data == 1
        and len(op.outputs) == 1
        and op.kind not in ("Pad", "ScatterND", "ScatterElements")
    )


def _is_same_grid(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.quantization == b.quantization


def _with_activation(op: Op, grid: Tensor, limits: tuple[int, int]) -> Op:
    """The operator with the activation that leaves the integers between `limits`; none if that is the whole grid."""
    found = next((name for name, bounds in ACTIVATIONS.items() if clip_range(grid, bounds) == limits), None)
    assert found is not None
    return op.with_attributes(activation=found) if found else op


def _is_exact(bounds: tuple[float | None, float | None], grid: Tensor) -> bool:
    """Whether a bound rounds to one stored integer however ties are rounded, so that clipping integers is clipping real values."""
    assert grid.quantization is not None
    if grid.dtype not in ("int8", "uint8", "int16", "uint16", "int4", "uint4"):
        return False
    low, high = integer_range(grid.dtype)
    for bound in bounds:
        if bound is None or not np.isfinite(bound):
            continue
        steps = np.float32(bound) / grid.quantization.scale[0]
        even, away = (int(np.clip(f(steps) + grid.quantization.zero_point[0], low, high)) for f in (round_half_even, round_half_away))
        if even != away:
            return False
    return True
