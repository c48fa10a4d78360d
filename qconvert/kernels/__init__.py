"""Kernels of runtimes, one row each: which operators they take, how they round, what they cannot hold, where they are wrong.

A folder or a file a runtime; KERNELS has the sets of kernels by the names that `--kernels` takes, and those of compilers, which no check
runs. What a target judges, what a check allows and explains, and which scales a conversion fits follow from these rows. A plugin gives
rows of its own: to its Target as `kernels`, to its Runtime as `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from qconvert.kernels.kernel import Integers, Kernel, Kernels, within

__all__ = ["KERNELS", "Integers", "Kernel", "Kernels", "kernels_of", "within"]


def _rows(module: str, name: str) -> Kernels:
    return Kernels(lambda: getattr(import_module(f"qconvert.kernels.{module}"), name))


#: "runtime:kernels" -> their rows.
KERNELS: Mapping[str, Kernels] = {
    "litert:default": _rows("litert.rows", "DEFAULT"),
    "litert:reference": _rows("litert.rows", "REFERENCE"),
    "litert:mixed": _rows("litert.rows", "MIXED"),
    "tflite-micro:reference": _rows("litert.rows", "MICRO"),
    "onnxruntime:optimized": _rows("onnxruntime", "ROWS"),
    "onnxruntime:unoptimized": _rows("onnxruntime", "UNOPTIMIZED"),
    "torch:rebuilt": _rows("torch", "PROGRAM"),
    "torch:trusted": _rows("torch", "TRUSTED"),
    "torch:modules": _rows("torch", "MODULES"),
    "torch:inductor": _rows("torch", "INDUCTOR"),
    "mnn:cpu": _rows("mnn", "ROWS"),
    **dict.fromkeys(("tensorrt:sm89", "tensorrt:sm120", "tensorrt:sm121"), _rows("tensorrt", "ROWS")),
    **dict.fromkeys(("tensorrt:sm80", "tensorrt:sm86"), _rows("tensorrt", "SM80")),
    "tensorrt:sm75": _rows("tensorrt", "SM75"),
}


def kernels_of(runtime: str) -> Callable[[str], Kernels]:
    """What gives the rows of a set of kernels of a built-in runtime, for plugins.Runtime.rows."""
    return lambda kernels: KERNELS[f"{runtime}:{kernels}"]
