"""OpenVINO: its intermediate representation (.xml with .bin) read and written, and a runtime of checks for it and for .onnx files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qconvert.plugin import Format, Kernel, Kernels, Pass, Runtime, Target, defer_imports, float32_tolerance, hookimpl

if TYPE_CHECKING:
    from qconvert.plugin import Graph, Op

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"

_lazy = defer_imports(__name__)


def _companions(path: Path) -> tuple[Path, ...]:
    beside = path.with_suffix(".bin")
    return (beside,) if beside.is_file() else ()


def _recognizes(start: bytes) -> bool:
    """Return whether a file begins with the XML declaration and the root element of a model."""
    return start.lstrip().startswith(b"<net ") or (start.startswith(b"<?xml") and b"<net " in start)


def _asymmetry_reason(graph: Graph, op: Op) -> str:
    q = graph[op.inputs[1]].quantization
    return "" if q is None or q.is_symmetric else "weights whose zero point is not 0"


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "openvino",
            (".xml",),
            "OpenVINO's IR: FakeQuantize, and weights as integers, in a .xml and a .bin file",
            read=_lazy("reader", "read"),
            write=_lazy("writer", "write"),
            default_target="openvino",
            recognizes=_recognizes,
            companions=_companions,
            narrow_ranges=True,
            normal_form=("io_to_states", "absorb_quantization", "openvino_names"),
        )
    ]


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    plain = "kernels of the source that round in their own way round once, as OpenVINO does"
    names = "stored integers get the name that the file gives to their dequantized values"
    return [
        Pass("openvino_rounding", plain, _lazy("writer", "drop_source_rounding"), exact=False, within=0.01),
        Pass("openvino_names", names, _lazy("reader", "restore_names")),
    ]


_BYTES = ("uint8", "int8")
#: Kinds with integer kernels by LPT, OpenVINO's low precision transformations (measured with 2026.4 on x86 with VNNI; README.md).
#: LPT requires weights with the zero point 0; layers with other weights run in float.
_ROWS = Kernels((
    Kernel(("Conv", "Gemm"), _BYTES, lacks=_asymmetry_reason, tolerance=float32_tolerance),
    Kernel(("MatMul", "Add", "AveragePool", "GlobalAveragePool", "MaxPool"), _BYTES, tolerance=float32_tolerance),
    Kernel(runs="float", tolerance=float32_tolerance),
))  # fmt: skip
_PASSES = (
    "lift_states", "dynamic_range", "unroll_sequences", "fuse_dilation", "fuse_pad", "openvino_rounding", "assign_layout", "float_io",
    "integer_io", "states_to_io",
)  # fmt: skip


@hookimpl
def qconvert_targets() -> Iterable[Target]:
    summary = "OpenVINO: scales, zero points, types and weights as in the source"
    return [Target("openvino", "openvino", summary, passes=_PASSES, layout="channels_first", kernels=_ROWS)]


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    summary = "OpenVINO's CPU plugin: integer kernels where it has them (int8), operands of sums rounded (unfused), or float (real)"
    kernels = ("int8", "unfused", "real")
    return [
        Runtime(
            "openvino", ("openvino", "onnx"), summary, "OpenVINO", _lazy("running", "OpenVinoModel"), lambda name: _ROWS, kernels,
            layers=_lazy("running", "layers"),
        )
    ]  # fmt: skip
