"""What PyTorch's kernels give where they are at fault, in a file that PyTorch runs itself."""

from __future__ import annotations

from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op
from qconvert.runtimes.torch_engines import engine_of

__all__ = ["overflows"]

#: qnnpack's relu6, hardtanh and clamp take data for contiguous (torch 2.13, qclamp.cpp), and the convolution before them, which is read as
#: one operator with them, gives its data channels last: the values come out in another order.
_CLAMPED = ("Clip", "Conv", "ConvTranspose", "Relu")
_TO_LAST = (0, 2, 3, 1)


def overflows(graph: Graph, op: Op, inputs: list[Array | None], kernels: str) -> tuple[Array, ...] | None:
    """See plugins.Runtime. The caller holds the values against what PyTorch gave, to the last bit."""
    if kernels != "trusted" or engine_of(graph) != "qnnpack" or op.kind not in _CLAMPED or graph[op.outputs[0]].rank != len(_TO_LAST):
        return None
    stored = evaluate_op(graph, op, inputs)[0].stored
    return (stored.transpose(_TO_LAST).reshape(stored.shape),)
