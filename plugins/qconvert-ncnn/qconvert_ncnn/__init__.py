"""ncnn: its networks (.param with .bin) read and written, with int8 layers, and a runtime of checks for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qconvert.plugin import NUMERICS, Format, Kernel, Kernels, Option, Pass, Runtime, Storage, Target, defer_imports, hookimpl

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"

_lazy = defer_imports(__name__)


def _companions(path: Path) -> tuple[Path, ...]:
    weights = path.with_suffix(".bin")
    return (weights,) if weights.is_file() else ()


_tolerance = _lazy("quantizations", "tolerance")
_ROWS = Kernels((
    Kernel(("Conv", "Gemm", "MatMul"), ("int8",), real=("sums",), tolerance=_tolerance,
           lacks=_lazy("quantizations", "missing_kernel_reason")),
    Kernel(runs="float", tolerance=_tolerance),
))  # fmt: skip


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "ncnn-net",
            (".param",),
            "networks of ncnn, with int8 layers; a .bin file with the same name holds the weights",
            read=_lazy("reader", "read"),
            write=_lazy("writer", "write"),
            default_target="ncnn",
            recognizes=lambda start: start.startswith(b"7767517"),
            companions=_companions,
            narrow_ranges=True,
            read_options=(Option("input_shape", str, "", "Sizes of inputs, such as 1,3,224,224 or x=1,3,224,224; y=1,10."),),
            write_options=(NUMERICS,),
            normal_form=("io_to_states", "absorb_quantization"),
        )
    ]


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    quantizations = "data of int8 layers become int8 with the zero point 0, from -127 to 127, with scales that ncnn's files can say"
    return [
        Pass("ncnn_samples", "a dynamic number of samples is 1", _lazy("passes", "set_one_sample")),
        Pass("ncnn_products", "products with constant matrices are fully connected layers", _lazy("passes", "replace_matmul")),
        Pass("ncnn_quantizations", quantizations, _lazy("passes", "requantize_data"), exact=False, within=0.05),
    ]


_PASSES = (
    "ncnn_samples", "lift_states", "expand_definitions", "fold_constants", "widen_float16", "dynamic_range", "fold_qat_batch_norm",
    "fold_batch_norm", "fuse_dilation", "fuse_pad", "ncnn_products", "fuse_activation", "widen_1d", "assign_layout", "store_activations",
    "symmetric_weights", "float_io", "integer_io", "int32_bias_to_float", "ncnn_quantizations", "states_to_io",
    "remove_redundant_requantize",
    "remove_dead_code",
)  # fmt: skip


@hookimpl
def qconvert_targets() -> Iterable[Target]:
    ncnn = Target(
        "ncnn", "ncnn-net", "ncnn: int8 convolutions and fully connected layers, all else in float",
        passes=_PASSES, layout="channels_first", kernels=_ROWS,
        storage=Storage(activations="int8", weights="int8", symmetric_weights=True),
    )  # fmt: skip
    real = "ncnn: rounds as the source does; layers whose data have zero points run in float"
    kept = tuple(name for name in _PASSES if name not in ("store_activations", "symmetric_weights", "ncnn_quantizations"))
    return [ncnn, ncnn.derive(name="ncnn-real", summary=real, passes=kept, storage=Storage())]


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    summary, model = "ncnn on this machine's CPU, in float32 and int8", _lazy("running", "NcnnModel")
    return [Runtime("ncnn", ("ncnn-net",), summary, "ncnn", model, lambda name: _ROWS, ("cpu",))]
