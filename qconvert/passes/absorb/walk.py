"""One walk over the operators of a graph, in which integers take the place of real values between Dequantize and Quantize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import accumulator_scale, is_accumulator_scale, quantize
from qconvert.evaluate.folding import evaluate_constant
from qconvert.evaluate.known_values import KnownValues
from qconvert.graph import Array, Graph, Names, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.graph.activations import clip_range, is_exact
from qconvert.graph.kinds import KINDS
from qconvert.graph.validation.quantization import is_axis_kept
from qconvert.passes.absorb.lookahead import Lookahead

__all__ = ["Absorber", "renamed"]


def renamed(op: Op, names: Mapping[str, str]) -> Op:
    """The operator with other names of inputs."""
    return replace(op, inputs=tuple(names.get(name, name) for name in op.inputs)) if names.keys() & set(op.inputs) else op


class Absorber:
    """One walk over a graph. `ops` and `tensors` are those of the new graph, `count` the operators that became quantized."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._public = graph.public
        self._known = KnownValues(graph.tensors, graph.producers())
        self._ahead = Lookahead(graph, self._known)
        self._stored: dict[str, str] = {}  # real values -> the tensor of stored integers that they come from
        self._alias: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self._names = Names(self.tensors)
        self.ops: list[Op] = []
        self.count = 0

    def visit(self, op: Op) -> None:
        """Takes the next operator over, in its new form."""
        op = renamed(op, self._alias)
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
        elif not self.tensors[source].shares_grid(result):
            self.ops.append(replace(op, kind="Requantize", inputs=(source,), attributes={}))
        elif result.name in self._public:
            self.ops.append(replace(op, kind="Identity", inputs=(source,), attributes={}))
        else:
            self._alias[result.name] = source

    # data movement

    def _moved(self, op: Op) -> bool:
        """Moves integers instead of the real values behind a Dequantize, if all data have one grid."""
        spec = KINDS[op.kind]
        if spec.rule != "move":
            return False
        data = spec.positions(op, "data")
        names = [self._stored.get(op.inputs[index], "") if op.inputs[index] else "" for index in data]
        first = self.tensors[names[0]] if names and names[0] else None
        if first is None or first.quantization is None or not all(n and self.tensors[n].shares_grid(first) for n in names):
            return False
        filler = self._stored_filler(op, first) if op.kind == "Pad" else ""
        outputs = spec.results_of(op)
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
        alone = len(self._ahead.consumers.get(source.name, [])) == 1 == len(self._ahead.consumers.get(op.inputs[0], []))
        name = source.name if alone and source.name not in self._public else self._integers(real, source.dtype, _known(grid))
        self.tensors[name] = Tensor(name, source.dtype, found[0].shape, found[0], grid)
        self._dequantize(name, real, op)
        return True

    def _data(self, name: str) -> Array | None:
        moved = self.tensors[name].data if name in self.tensors else None  # perhaps by a movement before this one
        return moved if moved is not None else self._known.get(name)

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
        name = self._names.fresh(wanted)
        self.tensors[name] = Tensor(name, like.dtype, (), data.astype(numpy_dtype(like.dtype)), like.quantization)
        return name

    # operators on real values

    def _absorbed(self, op: Op) -> bool:
        """Gives an operator the integers behind its real inputs, and its result a grid, where both are there."""
        spec = KINDS[op.kind]
        taken = self._taken(op)
        if not any(taken):
            return False
        grid = self._ahead.grid(op.outputs[0]) if spec.rule == "real" else None
        if grid is None and spec.rule == "real" and not spec.sums_products:
            return False
        op = replace(op, inputs=tuple(new or old for new, old in zip(taken, op.inputs, strict=True)))
        if grid is None:
            self.ops.append(op)
            self.count += 1
        else:
            self._append_on_grid(op, grid)
        return True

    def _taken(self, op: Op) -> list[str]:
        """For each input the tensor of stored integers that the operator reads in its place, or ""; empty if it reads none."""
        spec = KINDS[op.kind]
        stored = [self._stored.get(name, "") for name in op.inputs]
        if not any(stored) or len(op.outputs) != 1:
            return []
        if spec.rule == "index":
            return stored if op.kind in ("ArgMax", "ArgMin") else []
        if spec.rule != "real":
            return []
        if spec.sums_products:
            return self._linear_inputs(op, stored)
        data = spec.positions(op, "data")
        return [name if index in data else "" for index, name in enumerate(stored)]

    def _append_on_grid(self, op: Op, grid: Tensor) -> None:
        """Appends the operator, which reads integers already, with integers on `grid` as its result, and its real values behind those."""
        real = op.outputs[0]
        name = self._integers(real, grid.dtype, _known(grid.quantization))
        op = replace(op, outputs=(name,))
        if not self._clipped(op):
            self.ops.append(op)
            self.count += 1
        self._dequantize(self._alias.get(name, name), real, op)

    # clipping

    def _clipped(self, op: Op) -> bool:
        """A Relu or Clip of integers on one grid: nothing if the grid is no wider, else a Clip whose bounds are on the grid."""
        bounds = self._ahead.bounds(op)
        if bounds is None:
            return False
        source, result = self.tensors[op.inputs[0]], self.tensors[op.outputs[0]]
        q = source.quantization
        if q is None or not q.is_per_tensor or not source.shares_grid(result) or not is_exact(bounds, source):
            return False
        limits = clip_range(source, bounds)
        if limits == integer_range(source.dtype) and result.name not in self._public:
            if source.name in self._graph.tensors or result.name not in self._graph.tensors:
                self._alias[result.name] = source.name
            else:
                self._rename(source.name, result.name)  # a name of the file, by which a check finds the tensor
            return True
        with np.errstate(over="ignore"):  # at scales near the largest float32 a bound is infinite
            ends = [np.float32(limit - q.zero_point[0]) * q.scale[0] for limit in limits]
        names = [self._scalar(f"{result.name}/{word}", bound) for word, bound in zip(("lowest", "highest"), ends, strict=True)]
        self.ops.append(Op("Clip", (source.name, *names), op.outputs, {}, op.source))
        return True

    def _rename(self, old: str, new: str) -> None:
        """Gives a tensor that an operator here has written another name."""
        self.tensors[new] = replace(self.tensors.pop(old), name=new)
        for position in range(len(self.ops) - 1, -1, -1):
            op = self.ops[position]
            if old in op.inputs:
                self.ops[position] = replace(op, inputs=tuple(new if name == old else name for name in op.inputs))
                self._stored.update({real: new for real in op.outputs if self._stored.get(real) == old})
            elif old in op.outputs:
                self.ops[position] = replace(op, outputs=tuple(new if name == old else name for name in op.outputs))
                return

    def _scalar(self, wanted: str, value: np.float32) -> str:
        name = self._names.fresh(wanted)
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
        exact = accumulator_scale(data.quantization, weights.quantization)
        stated = bias.quantization.scale
        if stated.size not in (1, exact.size) and exact.size != 1:
            return False
        return is_accumulator_scale(stated, exact)

    def _integers(self, real: str, dtype: str, grid: Quantization) -> str:
        """A tensor for the stored integers of `real`: the result of a Quantize of just this grid, or one with a new name."""
        shape = self._graph[real].shape
        wanted = Tensor(f"{real}/{dtype}", dtype, shape, None, grid)
        for reader in (op for op in self._ahead.consumers.get(real, []) if op.kind == "Quantize"):
            result = self._graph[reader.outputs[0]]
            if result.shares_grid(wanted):
                self.tensors[result.name] = replace(result, shape=shape if result.shape is None else result.shape)
                return result.name
        name = self._names.fresh(wanted.name)
        self.tensors[name] = replace(wanted, name=name)
        return name

    def _dequantize(self, stored: str, real: str, op: Op) -> None:
        self.ops.append(Op("Dequantize", (stored,), (real,), {}, op.source))
        self._stored[real] = stored


def _known(grid: Quantization | None) -> Quantization:
    assert grid is not None
    return grid
