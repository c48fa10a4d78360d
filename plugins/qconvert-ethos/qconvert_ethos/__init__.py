"""Arm Ethos-U NPUs: targets ethos-u55, ethos-u65 and ethos-u85 for .tflite files, and Vela, which compiles these.

Next to the NPU a Cortex-M runs tflite-micro, so the targets derive from the target tflite-micro. constraints.py has the operators that Vela
gives to the NPU; `qconvert audit --run` asks Vela itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from qconvert.plugin import KERNELS, Accelerator, Derived, Kernel, Kernels, Pass, Runtime, Target, defer_imports, hookimpl

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"

_lazy = defer_imports(__name__)

#: Family -> its sizes in MACs a cycle, as Vela's --accelerator-config has them; the first is the default.
FAMILIES = {
    "ethos-u55": ("128", "32", "64", "256"),
    "ethos-u65": ("256", "512"),
    "ethos-u85": ("256", "128", "512", "1024", "2048"),
}


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    lowered = "operators in float for which Vela refuses a whole file become others"
    first = "Transpose and Reshape at float inputs and outputs move integers: Quantize runs before them, Dequantize after them"
    return [
        Pass("quantize_first", first, _lazy("passes", "quantize_first")),
        Pass("lower_for_vela", lowered, _lazy("passes", "lower_for_vela"), within=1e-6),
    ]


#: Kernels of tflite-micro, and Gelu, which only the NPU has: a table of 256 entries whose results are not known here.
_ROWS = KERNELS["tflite-micro:reference"].with_rows(Kernel(("Gelu",), ("int8",)))


@hookimpl
def qconvert_targets() -> Iterable[Derived]:
    return [
        Target.derive(
            "tflite-micro",
            name=family,
            summary=f"Arm {family.title()}, compiled by Vela, next to tflite-micro",
            kernels=_ROWS,
            storage={"weight_dtypes": {"int8": ("int8",), "int16": ("int8",)}},
            further_passes=("quantize_first", "lower_for_vela"),
            further_rules=partial(_lazy("constraints", "violations"), family),
            accelerator=Accelerator(family.title(), partial(_lazy("constraints", "lacks"), family)),
            checked_by="litert",
        )
        for family in FAMILIES
    ]


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    return [
        Runtime(
            family,
            ("tflite",),
            f"Vela, which compiles for {family.title()} and estimates cycles and memory; it runs nothing",
            "Vela",
            _lazy("vela", "refuse_to_run"),
            rows=lambda name: Kernels(),
            kernels=sizes,
            whole=True,
            build=partial(_lazy("vela", "build"), family),
            package="ethos-u-vela",
        )
        for family, sizes in FAMILIES.items()
    ]
