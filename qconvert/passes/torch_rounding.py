"""Operators of PyTorch's engines, in forms that give the same integers in onnxruntime and LiteRT; a part of match_rounding.

Averages, interpolations and first roundings: see rewriting/torch_forms.py. Additions are tried on all 65,536 pairs of integers. QLinearAdd
gets other input scales (see nudged_scales), and LiteRT's addition, which computes with multipliers of 20 bits, becomes one of float values
on such scales.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.arithmetic import ADDITIONS, INTEGER_FACTORS, TORCH_AVERAGES, adds_alike, adds_as, xnnpack_add, xnnpack_adds
from qconvert.graph import Graph, Op, Quantization
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.operators import adds_plainly, kind_of, nudged_scales
from qconvert.passes.torch_layers import exact_layer
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.torch_forms import TorchForms, has_torch_form

__all__ = ["TorchRounding", "rounds_as_torch", "without_torch"]

#: Kinds for which LiteRT's integer kernels compute with fewer bits than PyTorch's float32 (docs/measured/kernels.md).
_COARSE = ("LeakyRelu", "HardSwish")


def without_torch(graph: Graph) -> Graph:
    """Return the graph without the roundings of PyTorch's engines, as of a source whose kernels nobody knows."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        rewriter.replace(op, _plain(op))
    return rewriter.finish(metadata={key: value for key, value in graph.metadata.items() if key != SOURCE_KERNELS})


def _plain(op: Op) -> Op:
    known = op.attributes.get("arithmetic") in (*TORCH_AVERAGES, *ADDITIONS, "torch", "fused")
    return op.with_attributes(arithmetic="") if known else op


def rounds_as_torch(op: Op) -> bool:
    """Whether an operator rounds as one of PyTorch's engines does."""
    return op.attributes.get("arithmetic") in (*TORCH_AVERAGES, "qnnpack", "fbgemm", "torch", "fused")


class TorchRounding(TorchForms):
    """Puts other operators in the place of those that round as PyTorch's engines do, and of additions and layers of theirs.

    ONNX's writer has the forms of TorchForms too, and TFLite's that of a first rounding, and they note what these stand for: there,
    operators stay as they are.
    """

    def __init__(self, rewriter: Rewriter, target: Target, keeps_biases: bool, integer_inputs: bool) -> None:
        super().__init__(rewriter, target.format)
        self._keeps_biases = keeps_biases
        #: Of additions that LiteRT's own kernel gives: what the file notes (STATED_ATTRIBUTES).
        self.stated: dict[str, dict[str, str]] = {}
        self._outside = frozenset(self._graph.inputs if integer_inputs else ())  # what the program around the network rounds

    def visit(self, op: Op) -> None:
        """Replace an operator by the form that rounds as its `arithmetic` says."""
        if op.kind == "Add" and op["arithmetic"] in ADDITIONS:
            self._add_as(op)
        elif self._keeps_biases and kind_of(op).has_weights and (layer := exact_layer(self._rewriter, op)) is not None:
            self.done["layers run in float, because their biases are float"] += 1
            self._rewriter.replace(op, *layer)
        elif op.kind == "Quantize" and op.inputs[0] in self._outside:
            self._plainly(op)
        elif self._runtime == "tflite" and op.kind in _COARSE and self._on_8_bits(op) and not self._graph.is_from("tflite"):
            self._on_reals(op)
        elif has_torch_form(op) and (self._runtime == "onnx" or op.kind == "Quantize"):
            forms = TorchForms(Rewriter(self._graph), self._runtime)  # left to the writer
            forms.visit(op)
            self.done += forms.done
        else:
            super().visit(op)

    def _add_as(self, op: Op) -> None:
        quantizations = self._pair(op)
        in_onnx = self._runtime == "onnx"  # where a note says the `arithmetic`
        if quantizations is None or self._equals(op, quantizations):
            if not in_onnx:
                self._rewriter.replace(op, _plain(op))
            if quantizations is not None and self._runtime == "tflite":
                self.stated[op.outputs[0]] = {"arithmetic": str(op["arithmetic"])}
            return
        nudged = nudged_scales(self._graph, op)
        if nudged is None and not (in_onnx and op["arithmetic"] in INTEGER_FACTORS):
            self.done["additions use another kernel, which rounds differently for a few of all pairs of inputs"] += 1
            if not in_onnx:
                self._rewriter.replace(op, _plain(op))
            return
        self.done["additions are decomposed, to round as PyTorch does for every pair of inputs"] += 1
        if in_onnx or nudged is None:
            return
        reals = []
        for name, quantization in zip(op.inputs, nudged, strict=True):
            moved = self._rewriter.add(f"{name}/nudged", self._graph[name], quantization=quantization)
            reals.append(self._real(f"{name}/real", self._graph[name]))
            self._rewriter.emit(Op("Reinterpret", (name,), (moved,), {}, op.source))
            self._rewriter.emit(Op("Dequantize", (moved,), (reals[-1],), {}, op.source))
        self._quantized(op, _plain(op), tuple(reals))

    def _quantized(self, op: Op, new: Op, inputs: tuple[str, ...]) -> None:
        """Put an operator in float and a Quantize of its result in the place of one."""
        total = self._real(f"{op.outputs[0]}/real", self._graph[op.outputs[0]])
        self._rewriter.replace(op, replace(new, inputs=inputs, outputs=(total,)), Op("Quantize", (total,), op.outputs, {}, op.source))

    def _on_8_bits(self, op: Op) -> bool:
        """Whether data and result are of 8 bits with one scale each."""
        sides = [self._graph[name] for name in (*kind_of(op).data(op), *op.outputs)]
        return all(t.dtype in ("int8", "uint8") and t.quantization is not None and t.quantization.is_per_tensor for t in sides)

    def _on_reals(self, op: Op) -> None:
        """An operator between Dequantize and Quantize."""
        self.done["operators run in float, because LiteRT's integer kernels are less exact than PyTorch's"] += 1
        data = self._real(f"{op.inputs[0]}/real", self._graph[op.inputs[0]])
        self._rewriter.emit(Op("Dequantize", op.inputs[:1], (data,), {}, op.source))
        self._quantized(op, op, (data, *op.inputs[1:]))

    def _pair(self, op: Op) -> tuple[tuple[Quantization, Quantization], Quantization] | None:
        """The quantizations of an Add of 8-bit data; None where its `arithmetic` is of no such one."""
        tensors = [self._graph[name] for name in (*op.inputs, *op.outputs)]
        found = [tensor.quantization for tensor in tensors if tensor.quantization is not None]
        if {tensor.dtype for tensor in tensors} not in ({"int8"}, {"uint8"}) or len(found) != 3:
            return None
        quantizations = (found[0], found[1]), found[2]
        return quantizations if adds_as(str(op["arithmetic"]), *quantizations) else None

    def _equals(self, op: Op, quantizations: tuple[tuple[Quantization, Quantization], Quantization]) -> bool:
        """Whether the runtime's own kernel gives the same for all pairs of inputs."""
        if self._runtime == "onnx":
            return adds_plainly(self._graph, op)
        dtype = self._graph[op.outputs[0]].dtype
        return xnnpack_adds(*quantizations) and adds_alike(str(op["arithmetic"]), xnnpack_add, *quantizations, dtype)
