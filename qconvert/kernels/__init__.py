"""Kernels of runtimes, one row each: their operators, roundings, limits and faults.

A folder or a file a runtime; KERNELS has the sets of kernels by the names that `--kernels` takes, and those of compilers, which no check
runs. Targets judge operators by these rows, checks take tolerances from them, and conversions fit scales to them. A plugin gives rows of
its own: to its Target as `kernels`, to its Runtime as `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from qconvert.kernels.kernel import Integers, Kernel, Kernels, constant_tolerance, float32_tolerance

__all__ = ["KERNELS", "Integers", "Kernel", "Kernels", "constant_tolerance", "float32_tolerance", "kernels_of"]


def _rows(module: str, name: str, **facts: Any) -> Kernels:
    return Kernels(lambda: getattr(import_module(f"qconvert.kernels.{module}"), name), **facts)


_OF_LITERT: Mapping[str, Any] = {"dynamic_range": "tflite", "product_types": ("float32",), "unpacked_weights": "int8"}
_OF_TENSORRT: Mapping[str, Any] = {"unpacked_weights": "int8", "unpacked_blocks": ("int4", "int8")}


#: "runtime:kernels" -> their rows.
KERNELS: Mapping[str, Kernels] = {
    "litert:default": _rows("litert.rows", "DEFAULT", **_OF_LITERT),
    "litert:reference": _rows("litert.rows", "REFERENCE", **_OF_LITERT),
    "litert:optimized": _rows("litert.rows", "OPTIMIZED", **_OF_LITERT),
    "litert:mixed": _rows("litert.rows", "MIXED", dynamic_range="tflite"),
    "tflite-micro:reference": _rows("litert.rows", "MICRO", product_types=("float32",)),
    "onnxruntime:optimized": _rows("onnxruntime", "ROWS", dynamic_range="onnx", merges_roundings=True),
    "onnxruntime:in_float": _rows("onnxruntime", "IN_FLOAT", dynamic_range="onnx", merges_roundings=True, in_file_only=True),
    "onnxruntime:unoptimized": _rows("onnxruntime", "UNOPTIMIZED", dynamic_range="onnx"),
    "torch:rebuilt": _rows("torch", "PROGRAM"),
    "torch:trusted": _rows("torch", "TRUSTED", in_file_only=True),
    "torch:modules": _rows("torch", "MODULES"),
    "torch:inductor": _rows("torch", "INDUCTOR"),
    # Convolutions of float data are off by up to 4e-4 of their largest result (windows of 5 x 5, measured).
    "mnn:cpu": _rows("mnn", "ROWS", product_types=("float32",), decomposed_bounds=("Add", "Sub", "Mul", "Div"), tiles=2.0**-10),
    **dict.fromkeys(("tensorrt:sm89", "tensorrt:sm120", "tensorrt:sm121"), _rows("tensorrt", "ROWS", **_OF_TENSORRT)),
    **dict.fromkeys(("tensorrt:sm80", "tensorrt:sm86"), _rows("tensorrt", "SM80", **_OF_TENSORRT)),
    "tensorrt:sm75": _rows("tensorrt", "SM75", **_OF_TENSORRT),
}


def kernels_of(runtime: str) -> Callable[[str], Kernels]:
    """Return the function from a set of kernels of a built-in runtime to its rows, for plugins.Runtime.rows."""
    return lambda kernels: KERNELS[f"{runtime}:{kernels}"]
