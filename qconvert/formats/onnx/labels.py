"""Grids that nodes state, and the labels that tensors of plain integers get from them.

In an ONNX file a scale belongs to a node; in the canonical graph it belongs to the tensor of stored integers, as its label.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from qconvert.formats.onnx.node import NodeReading, NotCoveredError
from qconvert.graph import Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.graph.kinds import KINDS

__all__ = ["LabellingReading", "label_key"]


class LabellingReading(NodeReading):
    """One node that is being read, with ways to put what it says of scales on the tensors before it."""

    def quantization(self, scale: int, zero_point: int, axis: int | None = None, block_size: int = 0) -> Quantization:
        """The quantization that inputs `scale` and `zero_point` state.

        Args:
            scale: index of the scale: one element, or a list along `axis`, or in blocks of the data's rank.
            zero_point: index of the zero point; 0 if it is absent.
            axis: the dimension that a list runs along; None if there may be one value alone.
            block_size: elements along `axis` that share a scale; 0 without blocks.

        Raises:
            NotCoveredError: the scale or zero point is computed at run time.
            InvalidModelError: they do not fit each other.
        """
        scales, points = self.constant(scale), self.constant(zero_point)
        if scales is None or (points is None and self.has(zero_point)):
            raise NotCoveredError(f"a {'scale' if scales is None else 'zero point'} that is computed at run time")
        if scales.dtype.kind not in "fV" and scales.dtype.name != "bfloat16":
            raise self.invalid(f"the scale {self.inputs[scale]!r} is {scales.dtype}, not real numbers")
        values = np.asarray(scales).astype(np.float32)
        zeros = np.zeros(values.shape, np.int64) if points is None else np.asarray(points).astype(np.float64).astype(np.int64)
        if zeros.size != values.size and zeros.size != 1:
            raise self.invalid(f"{zeros.size} zero points beside {values.size} scales")
        zeros = np.broadcast_to(zeros.reshape(()), values.shape) if zeros.size == 1 else zeros.reshape(values.shape)
        if block_size:
            if axis is None:
                raise self.invalid("blocks of scales without an axis")
            if (values <= 0).any() and self.constant(0) is None:
                raise NotCoveredError("scales that are not positive, beside data")
            return Quantization(values, np.array(zeros), axis, block_size)
        if values.ndim > 1 or (values.size != 1 and axis is None):
            raise self.invalid(f"the scale {self.inputs[scale]!r} has shape {values.shape}, which fits neither a tensor nor an axis")
        # A list of one value along an axis of one element is per axis; without an axis, or beside a longer one, it is per tensor.
        along = axis if values.ndim == 1 and axis is not None and not (values.size == 1 and axis is None) else None
        return Quantization(values.reshape(-1), np.array(zeros).reshape(-1), along)

    def noted_grid(self) -> tuple[bool, Quantization | None]:
        """Whether a note gives output 0 another grid than that of input 0, or none, and the grid; one that cannot be is no note."""
        name, before = self.outputs[0], self.tensor(0)
        if name not in self._draft.relabelled or before.dtype not in ("int8", "uint8", "int16", "uint16", "int32"):
            return False, None
        grid = self._draft.relabelled[name]
        low, high = integer_range(before.dtype)
        sound = grid is None or (0 < float(grid.scale[0]) < np.inf and low <= int(grid.zero_point[0]) <= high)
        return (sound and grid != before.quantization), (grid if sound else None)

    def labelled(self, index: int, quantization: Quantization, dtype: str = "") -> str:
        """Input `index` with a label: the tensor itself if it has none or the same one, else the same integers under another label.

        Plain integers get their label back through the movements that led to them, up to a constant or an input of the graph:

            x (uint8) -> Reshape -> a (uint8)      -> Transpose -> b (uint8)      -> DequantizeLinear(s, z) -> y
            x (s, z)  -> Reshape -> a (s, z)       -> Transpose -> b (s, z)       -> Dequantize             -> y

        and where the tensor has another label already:

            c (uint8) -> DequantizeLinear(s, z) -> y,  c -> DequantizeLinear(t, z) -> w
            c (s, z)  -> Dequantize -> y,              c -> Reinterpret -> c/labelled (t, z) -> Dequantize -> w

        `dtype` is what the label says of the type, for a tensor whose type nothing else says.
        """
        if dtype:
            self.assume(index, dtype)
        tensor = self.tensor(index)
        if "int" not in tensor.dtype and not tensor.dtype.startswith("float8") and tensor.dtype != "float4e2m1":
            raise self.invalid(f"input {tensor.name!r} is {tensor.dtype}, not a quantized type")
        self._require_fit(tensor, quantization)
        if tensor.quantization == quantization:
            return tensor.name
        data = tensor.data if tensor.quantization is not None else None
        if tensor.data is None and tensor.name in self._draft.producers:
            data = self._known.get(tensor.name)
        if data is not None:
            return self._draft.variant(tensor.name, f"label_{label_key(quantization)}", data, quantization)
        if tensor.quantization is None and self._label(tensor, quantization):
            return tensor.name
        name = self._draft.add(f"{tensor.name}/labelled", tensor.dtype, tensor.shape, None, quantization)
        self._draft.append(Op("Reinterpret", (tensor.name,), (name,), {}, self.source))
        return name

    def _require_fit(self, tensor: Tensor, quantization: Quantization) -> None:
        axis, shape = quantization.axis, tensor.shape
        if axis is None or shape is None:
            return
        size = shape[axis] if axis < len(shape) else None
        if quantization.block_size == 0 and isinstance(size, int) and size != quantization.scale.size:
            raise self.invalid(f"{quantization.scale.size} scales for axis {axis} of {tensor.name!r}, whose shape is {shape}")

    def _label(self, tensor: Tensor, quantization: Quantization) -> bool:
        """Labels a tensor and the movements that lead to it; False, and nothing is done, if another operator made the integers."""
        chain = [tensor]
        while (op := self._draft.producers.get(chain[-1].name)) is not None:
            source = self._draft.tensors[op.inputs[0]] if op.inputs else None
            per_tensor = quantization.axis is None or op.kind == "Identity"
            if op.kind in ("Concat", "Pack", "ScatterND", "ScatterElements"):  # the other integers that join would need the label too
                return False
            if source is None or KINDS[op.kind].rule != "move" or source.quantization is not None or not per_tensor or len(op.outputs) > 1:
                return KINDS[op.kind].rule in ("plain", "opaque", "index") and self._keep(chain, quantization)
            chain.append(source)
        return self._keep(chain, quantization)

    def _keep(self, chain: list[Tensor], quantization: Quantization) -> bool:
        found = self._holders(chain, quantization)
        if found is None:
            return False
        tensors, moves = found
        pads = [op for op in moves if op.kind == "Pad" and op["mode"] == "constant"]
        values = [self._known.get(op.inputs[2]) if len(op.inputs) > 2 else np.array(0) for op in pads]
        if any(value is None or value.size != 1 for value in values):
            return False
        for tensor in tensors:
            self._draft.tensors[tensor.name] = replace(tensor, quantization=quantization)
        for op, value in zip(pads, values, strict=True):
            self._refill(op, int(np.asarray(value).reshape(())), quantization)
        return True

    def _holders(self, chain: list[Tensor], quantization: Quantization) -> tuple[list[Tensor], list[Op]] | None:
        """All tensors that hold the integers of `chain`, and the movements between them: a label is on all of them, or on none.

        None if one of them has another label, or is read by what does not take this one: an operator on plain numbers, a joining one.
        """
        found = {tensor.name: tensor for tensor in chain}
        moves = [self._draft.producers[tensor.name] for tensor in reversed(chain[:-1])]
        waiting = list(chain)
        while waiting:
            name = waiting.pop().name
            for op in self._draft.readers.get(name, []):
                kind = KINDS[op.kind]
                if kind.rule in ("real", "index"):
                    return None
                if kind.rule != "move" or name not in kind.moved(op):
                    continue
                results = [self._draft.tensors[item] for item in kind.results_of(op) if item]
                new = [tensor for tensor in results if tensor.name not in found]
                if not new:
                    continue
                along = quantization.axis is not None and op.kind != "Identity"
                if along or kind.data(op) != [name] or any(tensor.quantization is not None for tensor in new):
                    return None
                moves.append(op)
                found |= {tensor.name: tensor for tensor in new}
                waiting += new
        return list(found.values()), moves

    def _refill(self, op: Op, value: int, quantization: Quantization) -> None:
        """Gives the padding of integers the label that they got; none where it is real zero. ONNX's default is the integer 0."""
        tensor = self._draft.tensors[op.outputs[0]]
        inputs = op.inputs[:2]
        if value != int(quantization.zero_point[0]):
            data = np.array(value, numpy_dtype(tensor.dtype))
            inputs = (*inputs, self._draft.add(f"{tensor.name}/padding", tensor.dtype, (), data, quantization))
        self._draft.exchange(op, replace(op, inputs=inputs))


def label_key(quantization: Quantization) -> str:
    """Tells labels apart in the names of variants."""
    parts = quantization.scale.tobytes() + quantization.zero_point.tobytes() + str(quantization.axis).encode()
    return hashlib.sha256(parts).hexdigest()[:8]
