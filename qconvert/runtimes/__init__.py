"""Runtimes: what runs model files. A runtime is one file, and next to it the tolerance of its kernels; here they are registered."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.kernels import kernels_of
from qconvert.plugins import Runtime, defer_imports, hookimpl

__all__ = ["RUNTIMES"]

_lazy = defer_imports(__name__)


RUNTIMES = (
    Runtime(
        "litert", ("tflite",), "LiteRT on the CPU: with XNNPACK (default), or its reference kernels", "LiteRT",
        open=_lazy("litert", "open_model"), rows=kernels_of("litert"), kernels=("default", "reference"),
        inside=_lazy("litert", "LiteRTInside"), watch=_lazy("litert", "watch"), layers=_lazy("litert", "layers"),
        taken_by=_lazy("litert", "taken_by"), around=_lazy("litert", "copy_without_operators"),
        keeps=_lazy("litert", "keeps"), package="ai-edge-litert",
    ),
    Runtime(
        "tflite-micro", ("tflite",), "TensorFlow Lite for Microcontrollers, interpreted on this machine", "tflite-micro",
        open=_lazy("tflite_micro", "open_model"), rows=kernels_of("tflite-micro"), kernels=("reference",),
        whole=True, around=_lazy("litert", "copy_without_operators"), package="tflite-micro",
    ),
    Runtime(
        "onnxruntime", ("onnx",), "onnxruntime's CPU execution provider", "onnxruntime",
        open=_lazy("onnxruntime", "open_model"), rows=kernels_of("onnxruntime"), kernels=("optimized", "unoptimized"),
        inside=_lazy("onnx_inside", "OnnxInside"), watch=_lazy("onnx_inside", "watch"),
        layers=_lazy("onnx_layers", "layers"), taken_by=_lazy("onnx_layers", "kept_in_float"),
        around=_lazy("onnx_inside", "copy_without_operators"),
        package="onnxruntime",
    ),
    Runtime(
        "torch", ("torch",), "PyTorch on the CPU: programs rebuilt from what is read (default), or the file itself", "PyTorch",
        open=_lazy("torch", "open_model"), rows=kernels_of("torch"), kernels=("rebuilt", "trusted"),
        runs_code=True, inside=_lazy("torch_inside", "inside_of"), package="torch",
    ),
    Runtime(
        "mnn", ("mnn",), "MNN on the CPU, in a process of its own", "MNN",
        open=_lazy("mnn", "open_model"), rows=kernels_of("mnn"), kernels=("cpu",),
        inside=_lazy("mnn", "MNNInside"), package="mnn",
    ),
    Runtime(
        "tensorrt", ("onnx",), "TensorRT, whose engine is built for a compute capability, and runs where a GPU is at hand", "TensorRT",
        open=_lazy("tensorrt", "open_model"), rows=kernels_of("tensorrt"),
        kernels=("sm89", "sm75", "sm80", "sm86", "sm120", "sm121"), build=_lazy("tensorrt", "build_engine"),
        inside=_lazy("onnx_inside", "OnnxInside"), watch=_lazy("onnx_inside", "watch"),
        around=_lazy("onnx_inside", "copy_without_operators"),
    ),
)  # fmt: skip


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    return RUNTIMES
