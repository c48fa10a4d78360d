"""Qualcomm's Hexagon Tensor Processor (HTP) by onnxruntime-qnn: the target qnn-htp for .onnx files, and its arithmetic as a runtime.

onnxruntime-qnn has a library for x86 that computes as HTP does, so that a check needs no device. operators.py lists the operators that HTP
runs, and those with wrong results; both are measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from qconvert.plugin import Accelerator, Derived, Kernel, Kernels, Pass, Runtime, Target, defer_imports, hookimpl

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"

_lazy = defer_imports(__name__)

#: Chip -> its number and the version of its HTP, as the provider has them (qc_compiler_spec.fbs of ExecuTorch); the first is the default.
#: Without a chip the provider assumes one without float support: graphs with Gelu, InstanceNormalization or float values then fail with an
#: out-of-memory error.
CHIPS = {
    "sm8650": {"soc_model": "57", "htp_arch": "75"},
    "sm8450": {"soc_model": "36", "htp_arch": "69"},
    "sm8550": {"soc_model": "43", "htp_arch": "73"},
    "sm8750": {"soc_model": "69", "htp_arch": "79"},
    "sm8850": {"soc_model": "87", "htp_arch": "81"},
}


_ROWS = Kernels((Kernel(tolerance=_lazy("operators", "tolerance")),), dynamic_range="onnx", half_floats=True)


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    lowered = "operators for which HTP refuses a whole graph become others"
    scales = "Softmax, and curves of 16 bits, are rounded to the scale and zero point that HTP computes them in, and then to their own"
    pooled = "integers that HTP would change before a Concat, or leave out between float operators, go through a MaxPool of one element"
    return [
        Pass("lower_for_htp", lowered, _lazy("passes", "lower_for_htp"), exact=False, within=0.01),
        Pass("htp_scales", scales, _lazy("passes", "htp_scales"), exact=False, within=0.01),
        Pass("keep_integers", pooled, _lazy("passes", "keep_integers")),
    ]


@hookimpl
def qconvert_targets() -> Iterable[Derived]:
    return [
        Target.derive(
            "portable",
            name="qnn-htp",
            summary="Qualcomm HTP by onnxruntime-qnn: unsigned data of 8 and 16 bits",
            storage={"activations": "unsigned", "weights": "int8", "symmetric_weights": True},
            further_passes=("dense_weights", "symmetric_weights", "lower_for_htp", "htp_scales", "keep_integers"),
            further_rules=lambda graph: partial(_lazy("operators", "violations"), graph),
            accelerator=Accelerator("HTP", lambda graph: partial(_lazy("operators", "lacks"), graph), fault=_lazy("operators", "fault")),
            kernels=_ROWS,
            checked_by="qnn-htp",
        )
    ]


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    return [
        Runtime(
            "qnn-htp",
            ("onnx",),
            "Qualcomm HTP's arithmetic on x86, by onnxruntime-qnn; what HTP does not take runs in onnxruntime",
            "HTP",
            _lazy("running", "HtpModel"),
            rows=lambda name: _ROWS,
            kernels=tuple(CHIPS),
            layers=_lazy("running", "layers"),
            inside=_lazy("running", "inside"),
            package="onnxruntime-qnn",
        )
    ]
