"""Apache TVM as a runtime of checks: .onnx files imported by Relax and compiled for this machine's CPU."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugin import Kernel, Kernels, Runtime, defer_imports, hookimpl

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"

_lazy = defer_imports(__name__)
_ROWS = Kernels((Kernel(runs="float", tolerance=_lazy("running", "tolerance")),))


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    summary = "Apache TVM: imported by Relax, compiled by LLVM for this machine's CPU"
    return [Runtime("tvm", ("onnx",), summary, "TVM", _lazy("running", "TvmModel"), lambda name: _ROWS, ("llvm",))]
