"""Apache TVM as a runtime of checks: .onnx files imported by Relax and compiled for this machine's CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qconvert.plugin import Kernel, Kernels, Runtime, hookimpl

if TYPE_CHECKING:
    from qconvert.plugin import Array, Graph, LoadedModel, ModelFile, Op

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"


def _open(file: ModelFile) -> LoadedModel:
    from qconvert_tvm.running import TvmModel

    return TvmModel(file)


def _tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    from qconvert_tvm.tolerances import tolerance

    return tolerance(graph, op, exact)


_ROWS = Kernels((Kernel(runs="float", tolerance=_tolerance),))


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    summary = "Apache TVM: imported by Relax, compiled by LLVM for this machine's CPU"
    return [Runtime("tvm", ("onnx",), summary, "TVM", _open, lambda name: _ROWS, ("llvm",), layout="channels_first")]
