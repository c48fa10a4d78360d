"""Quantizations that nodes state, and the labels that tensors of plain integers get from them.

In an ONNX file a scale belongs to a node; in the canonical graph it belongs to the tensor of stored integers, as its label.
"""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.node import NodeReading, NotCoveredError
from qconvert.formats.reading.labels import labelled
from qconvert.graph import Quantization, integer_range

__all__ = ["LabellingReading"]


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
            raise self.invalid(f"the scale {self.inputs[scale]!r} is {scales.dtype}, not float", rule="scale-type")
        values = np.asarray(scales).astype(np.float32)
        real_zeros = np.zeros(values.shape) if points is None else np.asarray(points).astype(np.float64)
        if not (np.abs(real_zeros) < 2**62).all():  # NaN neither
            raise self.invalid(
                f"the zero point {self.inputs[zero_point]!r} is {points}, which is not an integer type", rule="zero-point-type"
            )
        zeros = real_zeros.astype(np.int64)
        if zeros.size != values.size and zeros.size != 1:
            raise self.invalid(f"{zeros.size} zero points for {values.size} scales", rule="counts-differ")
        zeros = np.broadcast_to(zeros.reshape(()), values.shape) if zeros.size == 1 else zeros.reshape(values.shape)
        if block_size:
            if axis is None:
                raise self.invalid("blocks of scales without an axis", rule="counts-differ")
            if (values <= 0).any() and self.constant(0) is None:
                raise NotCoveredError("scales that are not positive, for data")
            return Quantization(values, np.array(zeros), axis, block_size)
        if values.ndim > 1 or (values.size != 1 and axis is None):
            raise self.invalid(
                f"the scale {self.inputs[scale]!r} has shape {values.shape}, which fits neither a tensor nor an axis",
                rule="counts-differ",
            )
        # A list of one value along an axis of one element is per axis; without an axis, or next to a longer one, it is per tensor.
        along = axis if values.ndim == 1 and axis is not None and not (values.size == 1 and axis is None) else None
        return Quantization(values.reshape(-1), np.array(zeros).reshape(-1), along)

    def noted_quantization(self) -> tuple[bool, Quantization | None]:
        """Whether a note gives output 0 another quantization than that of input 0, or none, and the quantization; one that cannot be is no
        note."""
        name, before = self.outputs[0], self.tensor(0)
        if name not in self._draft.relabelled or "int" not in before.dtype:
            return False, None
        quantization = self._draft.relabelled[name]
        if quantization is not None:
            low, high = integer_range(before.dtype)
            sizes = before.shape or ()
            fits = quantization.axis is None or (
                0 <= quantization.axis < len(sizes) and sizes[quantization.axis] == quantization.scale.size
            )
            positive = quantization.scale.size > 0 and bool(((quantization.scale > 0) & np.isfinite(quantization.scale)).all())
            if not (fits and positive and low <= int(quantization.zero_point.min()) and int(quantization.zero_point.max()) <= high):
                return False, None
        return quantization != before.quantization, quantization

    def labelled(self, index: int, quantization: Quantization, dtype: str = "") -> str:
        """Input `index` with a label (formats/reading/labels.py); `dtype` is what the label says of a type that nothing else says."""
        if dtype:
            self.assume(index, dtype)
        return labelled(self._draft, self.tensor(index), quantization, self._where())
