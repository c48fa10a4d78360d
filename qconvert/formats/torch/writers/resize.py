"""Resize by aten's upsampling."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.writers.sizes import sizes_of
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]

_NEAREST = {("asymmetric", "floor"): "upsample_nearest", ("half_pixel", "round_prefer_ceil"): "_upsample_nearest_exact",
            ("half_pixel", "round_prefer_floor"): "_upsample_nearest_exact"}  # fmt: skip


def write_resize(op: Op, b: Builder) -> None:
    """Resize: nearest and linear, in the two ways in which PyTorch places points."""
    b.channels_first(op)
    spatial, sizes = b.rank(op) - 2, sizes_of(b, op.inputs[1])
    mode, places = str(op["mode"]), str(op["coordinate_transformation_mode"])
    data, result = b.shape(op, op.inputs[0]), b.shape(op, op.outputs[0])
    if mode == "nearest":
        name = _NEAREST.get((places, str(op["nearest_mode"])))
        whole = all(isinstance(a, int) and isinstance(c, int) and c % a == 0 for a, c in zip(data[2:], result[2:], strict=True))
        if whole and places == "half_pixel":
            name = "upsample_nearest"  # repeats each element, as all ways of placing points do
        if name is None:
            raise b.unsupported(op, f"{places} places and {op['nearest_mode']}")
        b.finish(op, b.aten(f"{name}{spatial}d", b.real(op.inputs[0]), sizes))
        return
    if places not in ("half_pixel", "pytorch_half_pixel", "align_corners") or mode not in ("linear", "cubic"):
        raise b.unsupported(op, f"mode {mode} and {places} places")
    names = {("linear", 1): "upsample_linear1d", ("linear", 2): "upsample_bilinear2d", ("linear", 3): "upsample_trilinear3d",
             ("cubic", 2): "upsample_bicubic2d"}  # fmt: skip
    if (mode, spatial) not in names:
        raise b.unsupported(op, f"mode {mode} over {spatial} axes")
    b.finish(op, b.aten(names[mode, spatial], b.real(op.inputs[0]), sizes, places == "align_corners"))


WRITERS: Mapping[str, WriteFunction] = {"Resize": write_resize}
