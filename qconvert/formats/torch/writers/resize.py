"""Resize by aten's upsampling, or element by element where places are others, or are to be exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.formats.torch.nodes import Node
from qconvert.formats.torch.writers.kernels import finish_stored
from qconvert.formats.torch.writers.sizes import sizes_of
from qconvert.formats.torch.writers.sums import subtract_zero_point
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Array, Op
from qconvert.operators.resize import nearest, positions

__all__ = ["WRITERS", "known_sizes", "nearest_operator"]

_NEAREST = {("asymmetric", "floor"): "upsample_nearest", ("half_pixel", "round_prefer_ceil"): "_upsample_nearest_exact",
            ("half_pixel", "round_prefer_floor"): "_upsample_nearest_exact"}  # fmt: skip
_SMOOTH = {("linear", 1): "upsample_linear1d", ("linear", 2): "upsample_bilinear2d", ("linear", 3): "upsample_trilinear3d",
           ("cubic", 2): "upsample_bicubic2d"}  # fmt: skip


def write_resize(op: Op, b: Builder) -> None:
    """Resize: nearest and linear."""
    b.channels_first(op)
    mode, places, spatial = str(op["mode"]), str(op["coordinate_transformation_mode"]), b.rank(op) - 2
    known = known_sizes(op, b)
    aligned = places in ("half_pixel", "pytorch_half_pixel", "align_corners")
    if mode == "nearest":
        _write_nearest(op, b, known)
    elif mode == "linear" and known is not None and (b.wide or not aligned or spatial > 3):
        _write_linear(op, b, *known)
    elif aligned and (mode, spatial) in _SMOOTH:
        b.finish(op, b.aten(_SMOOTH[mode, spatial], b.real(op.inputs[0]), sizes_of(b, op.inputs[1]), places == "align_corners"))
    else:
        raise b.unsupported_error(op, f"mode {mode} over {spatial} axes and {places} places")


def known_sizes(op: Op, b: Builder) -> tuple[list[int], list[int]] | None:
    """The spatial sizes before and after, if all are known."""
    before, after = (b.shape(op, name)[2:] for name in (op.inputs[0], op.outputs[0]))
    sizes = [[size for size in shape if isinstance(size, int)] for shape in (before, after)]
    return (sizes[0], sizes[1]) if len(sizes[0]) == len(sizes[1]) == len(before) else None


def _write_nearest(op: Op, b: Builder, known: tuple[list[int], list[int]] | None) -> None:
    """Stored values that are repeated or left out: by an operator that has these places, else by their indices along each axis."""
    places, spatial = str(op["coordinate_transformation_mode"]), b.rank(op) - 2
    name = nearest_operator(op, known)
    if name is not None and spatial <= 3 and not (b.wide and name != "upsample_nearest"):
        b.finish(op, b.aten(f"{name}{spatial}d", b.real(op.inputs[0]), sizes_of(b, op.inputs[1])))
        return
    if known is None:
        raise b.unsupported_error(op, f"{places} places and {op['nearest_mode']} along axes of unknown size", rule="unknown-size")
    node = b.real(op.inputs[0])
    b.note_operator()
    for axis, (before, after) in enumerate(zip(*known, strict=True), 2):
        chosen = np.clip(nearest(str(op["nearest_mode"]), *positions(places, before, after)), 0, before - 1)
        node = b.aten("index_select", node, axis, b.buffer(chosen, f"{op.outputs[0]}/places"))
    b.finish(op, node)


def nearest_operator(op: Op, known: tuple[Sequence[int], Sequence[int]] | None) -> str | None:
    """The operator that takes the nearest element, without its number of axes; None if PyTorch places points otherwise."""
    places = str(op["coordinate_transformation_mode"])
    if known is not None and all(after % before == 0 for before, after in zip(*known, strict=True)) and places == "half_pixel":
        return "upsample_nearest"  # repeats each element, as all ways of placing points do
    return _NEAREST.get((places, str(op["nearest_mode"])))


def _write_linear(op: Op, b: Builder, before: list[int], after: list[int]) -> None:
    """Sums of neighbours times whole numbers, axis by axis, which are exact; all are divided at the end."""
    data, total = b.tensor(op.inputs[0]), 1
    on_quantization = b.wide and data.quantization is not None and data.quantization.is_per_tensor
    b.note_operator()
    node = (
        subtract_zero_point(b, b.stored_value(data.name), "float64", data.quantization, 0)
        if on_quantization and data.quantization
        else b.real(data.name)
    )
    for axis, (size, wanted) in enumerate(zip(before, after, strict=True), 2):
        numerators, denominator = positions(str(op["coordinate_transformation_mode"]), size, wanted)
        node = _interpolate_axis(op, b, node, axis, size, (numerators, denominator))
        total *= denominator
    node = b.aten("div.Tensor", node, float(total))
    if on_quantization and op["arithmetic"] and data.quantization is not None and data.shares_quantization(b.tensor(op.outputs[0])):
        point, ties_up = int(data.quantization.zero_point[0]), op["arithmetic"] == "ties_up"
        stored = b.aten("add.Tensor", node, point + 0.5 * ties_up) if point or ties_up else node
        finish_stored(op, b, b.aten("floor" if ties_up else "round", stored))
        return
    if on_quantization and data.quantization is not None:
        node = b.aten("mul.Tensor", node, float(data.quantization.scale[0]))
    b.finish(op, node)


def _interpolate_axis(op: Op, b: Builder, node: Node, axis: int, size: int, places: tuple[Array, int]) -> Node:
    """Values between neighbours along an axis, times the denominator of their places; outside of the data the edge continues."""
    numerators, denominator = places
    lower = numerators // denominator
    shape = [-1 if place == axis else 1 for place in range(b.rank(op))]
    weight = (numerators - lower * denominator).reshape(shape).astype(np.float64 if b.wide else np.float32)
    sides = []
    for index, share in ((lower, denominator - weight), (lower + 1, weight)):
        chosen = b.buffer(np.clip(index, 0, size - 1), f"{op.outputs[0]}/places")
        side = b.aten("index_select", node, axis, chosen)
        sides.append(b.aten("mul.Tensor", side, b.buffer(share.astype(weight.dtype), f"{op.outputs[0]}/shares")))
    return b.aten("add.Tensor", *sides)


WRITERS: Mapping[str, WriteFunction] = {"Resize": write_resize}
