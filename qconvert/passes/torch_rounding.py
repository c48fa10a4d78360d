"""Operators of PyTorch's engines, in forms that give the same integers in onnxruntime and LiteRT; a part of match_rounding.

Averages, interpolations and first roundings: see graph/torch_forms.py. Additions are tried on all 65,536 pairs of integers. QLinearAdd
gets other input scales (see nudged_scales), and LiteRT's addition, which computes with multipliers of 20 bits, becomes one of real values
on such scales.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.arithmetic import ADDITIONS, INTEGER_FACTORS, TORCH_AVERAGES, adds_alike, adds_as, xnnpack_add, xnnpack_adds
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.kinds import KINDS, adds_plainly, nudged_scales
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.graph.torch_forms import TorchForms, has_torch_form
from qconvert.passes.torch_layers import exact_layer
from qconvert.plugins import Target

__all__ = ["TorchRounding", "rounds_as_torch", "without_torch"]

#: Kinds for which LiteRT's integer kernels compute with fewer bits than PyTorch's float32 (docs/fidelity.md).
_COARSE = ("LeakyRelu", "HardSwish")
_LAYERS = ("Conv", "ConvTranspose", "Gemm")


def without_torch(graph: Graph) -> Graph:
    """The graph without the roundings of PyTorch's engines, as of a source whose kernels nobody knows."""
    metadata = {key: value for key, value in graph.metadata.items() if key != SOURCE_KERNELS}
    return graph.evolve(ops=[_plain(op) for op in graph.ops], metadata=metadata)


def _plain(op: Op) -> Op:
    known = op.attributes.get("arithmetic") in (*TORCH_AVERAGES, *ADDITIONS, "torch", "fused")
    return op.with_attributes(arithmetic="") if known else op


def rounds_as_torch(op: Op) -> bool:
    """Whether an operator rounds as one of PyTorch's engines does."""
    return op.attributes.get("arithmetic") in (*TORCH_AVERAGES, "qnnpack", "fbgemm", "torch", "fused")


class TorchRounding(TorchForms):
    """Rewrites the operators of a graph one after the other.

    ONNX's writer has the forms of TorchForms too, and TFLite's that of a first rounding, and they note what these stand for: there,
    operators stay as they are.
    """

    def __init__(self, graph: Graph, target: Target, keeps_biases: bool, integer_inputs: bool) -> None:
        super().__init__(graph, target.format)
        self._keeps_biases = keeps_biases
        #: Of additions that LiteRT's own kernel gives: what the file notes (STATED_ATTRIBUTES).
        self.stated: dict[str, dict[str, str]] = {}
        self._outside = frozenset(graph.inputs if integer_inputs else ())  # what the program around the network rounds

    def visit(self, op: Op) -> None:
        """Takes an operator over, in the form that rounds as its `arithmetic` says."""
        if op.kind == "Add" and op["arithmetic"] in ADDITIONS:
            self._add_as(op)
        elif self._keeps_biases and op.kind in _LAYERS and (found := exact_layer(self._graph, op)) is not None:
            self.done["layers on real values, since their biases are real"] += 1
            self.ops += found[0]
            self.tensors.update((tensor.name, tensor) for tensor in found[1])
        elif op.kind == "Quantize" and op.inputs[0] in self._outside:
            self._plainly(op)
        elif self._runtime == "tflite" and op.kind in _COARSE and self._on_8_bits(op) and not self._graph.is_from("tflite"):
            self._on_reals(op)
        elif has_torch_form(op) and (self._runtime == "onnx" or op.kind == "Quantize"):
            self._left_to_writer(op)
        else:
            super().visit(op)

    def _left_to_writer(self, op: Op) -> None:
        forms = TorchForms(self._graph, self._runtime)
        forms.visit(op)
        self.done += forms.done
        self.ops.append(op)

    def _where_noted(self, op: Op) -> Op:
        """An operator with its `arithmetic` in ONNX, where a note says it; without it elsewhere."""
        return op if self._runtime == "onnx" else _plain(op)

    def _add_as(self, op: Op) -> None:
        grids = self._pair(op)
        if grids is None or self._equals(op, grids):
            self.ops.append(self._where_noted(op))
            if grids is not None and self._runtime == "tflite":
                self.stated[op.outputs[0]] = {"arithmetic": str(op["arithmetic"])}
            return
        nudged = nudged_scales(self._graph, op)
        if nudged is None and not (self._runtime == "onnx" and op["arithmetic"] in INTEGER_FACTORS):
            self.done["additions with another kernel, which rounds otherwise for a few of all pairs of inputs"] += 1
            self.ops.append(self._where_noted(op))
            return
        self.done["additions in a form that rounds as PyTorch does for every pair of inputs"] += 1
        if self._runtime == "onnx" or nudged is None:
            self.ops.append(op)
            return
        real = []
        for name, grid in zip(op.inputs, nudged, strict=True):
            moved = self._tensor(replace(self._graph[name], quantization=grid), f"{name}/nudged")
            real.append(self._tensor(Tensor("", "float32", self._graph[name].shape), f"{name}/real"))
            self.ops += [Op("Reinterpret", (name,), (moved,), {}, op.source), Op("Dequantize", (moved,), (real[-1],), {}, op.source)]
        result = self._graph[op.outputs[0]]
        total = self._tensor(Tensor("", "float32", result.shape), f"{result.name}/real")
        self.ops.append(replace(_plain(op), inputs=tuple(real), outputs=(total,)))
        self.ops.append(Op("Quantize", (total,), op.outputs, {}, op.source))

    def _on_8_bits(self, op: Op) -> bool:
        """Whether data and result are of 8 bits with one scale each."""
        sides = [self._graph[name] for name in (*KINDS[op.kind].data(op), *op.outputs)]
        return all(t.dtype in ("int8", "uint8") and t.quantization is not None and t.quantization.is_per_tensor for t in sides)

    def _on_reals(self, op: Op) -> None:
        """An operator between Dequantize and Quantize."""
        self.done["operators on real values, since LiteRT's kernels for integers are coarser than PyTorch's"] += 1
        data = self._tensor(Tensor("", "float32", self._graph[op.inputs[0]].shape), f"{op.inputs[0]}/real")
        result = self._tensor(Tensor("", "float32", self._graph[op.outputs[0]].shape), f"{op.outputs[0]}/real")
        self.ops.append(Op("Dequantize", op.inputs[:1], (data,), {}, op.source))
        self.ops.append(replace(op, inputs=(data, *op.inputs[1:]), outputs=(result,)))
        self.ops.append(Op("Quantize", (result,), op.outputs, {}, op.source))

    def _pair(self, op: Op) -> tuple[tuple[Quantization, Quantization], Quantization] | None:
        """The grids of an Add of 8-bit data; None where its `arithmetic` is of no such one."""
        tensors = [self._graph[name] for name in (*op.inputs, *op.outputs)]
        found = [tensor.quantization for tensor in tensors if tensor.quantization is not None]
        if {tensor.dtype for tensor in tensors} not in ({"int8"}, {"uint8"}) or len(found) != 3:
            return None
        grids = (found[0], found[1]), found[2]
        return grids if adds_as(str(op["arithmetic"]), *grids) else None

    def _equals(self, op: Op, grids: tuple[tuple[Quantization, Quantization], Quantization]) -> bool:
        """Whether the runtime's own kernel gives the same for all pairs of inputs."""
        if self._runtime == "onnx":
            return adds_plainly(self._graph, op)
        dtype = self._graph[op.outputs[0]].dtype
        return xnnpack_adds(*grids) and adds_alike(str(op["arithmetic"]), xnnpack_add, *grids, dtype)
