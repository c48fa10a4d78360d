"""Puts Quantize and Dequantize after the tensors that have quantizations, literally; a pass makes quantized operators of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.conversion.states.names import same_path
from qconvert.conversion.states.network import Network
from qconvert.conversion.states.places import Places
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError
from qconvert.graph import Op, Tensor
from qconvert.operators import kind_of
from qconvert.passes.encodings.limit_clips import split_limits

__all__ = ["Rounding"]


class Rounding:
    """Rounds values where the file says, and, in a quantized network, where its operators keep quantizations.

    Args:
        network: with the file's tensors in place; its operators are replaced.
        places: where quantizations stand.
        layers: result of an operator with weights -> its module.
    """

    def __init__(self, network: Network, places: Places, layers: Mapping[str, str]) -> None:
        self._network, self._places, self._layers = network, places, layers
        self._quantizations: dict[str, QParams] = {}
        self._real: dict[str, str] = {}
        self._ops: list[Op] = []
        self._data = (
            {same_path(path): quantization for path, quantization in network.parameters.data.items()} if network.parameters.trained else {}
        )
        self._kept_real = self._islands()

    def run(self) -> None:
        """Rewrites the operators.

        Raises:
            InvalidModelError: a layer with quantized weights has data without a quantization.
        """
        for name in self._network.graph.inputs:
            if name in self._places.following:
                self._quantizations[name] = self._places.following[name]
                self._real[name] = self._round_tensor(name, name, self._quantizations[name])
        for op in self._network.ops:
            self._visit(op)
        self._network.replace_ops(self._ops)

    def _visit(self, op: Op) -> None:
        module = self._layers.get(op.outputs[0]) if op.outputs else None
        data = self._network.data(op)
        if module is not None:
            self._round_data(module, data)
            self._require_quantization(module, op, data)
        inputs = tuple(self._real.get(name, name) for name in op.inputs)
        quantizations = [self._quantization_of(op, name, data) for name in op.outputs]
        results = []
        for name, quantization in zip(op.outputs, quantizations, strict=True):
            results.append(name if quantization is None else self._network.add(f"{name}/computed", self._network[name]))
        self._ops.append(replace(op, inputs=inputs, outputs=tuple(results)))
        for name, result, quantization in zip(op.outputs, results, quantizations, strict=True):
            if quantization is not None:
                self._quantizations[name] = quantization
                self._real[name] = self._round_tensor(name, result, quantization)

    def _quantization_of(self, op: Op, name: str, data: list[str]) -> QParams | None:
        """The quantization that a result is put on; None if it stays real."""
        if not name or op.kind == "Dequantize" or self._network[name].dtype != "float32":
            return None
        found = self._places.following.get(name)
        if found is not None or self._network.parameters.trained or name in self._places.inner or name not in kind_of(op).results_of(op):
            return found
        held = [self._quantizations.get(item) for item in data]
        if not held or any(item is None for item in held) or name in self._kept_real:
            return None
        if op.kind in self._network.parameters.fixed:
            return self._network.parameters.fixed[op.kind] if self._leads_to_layer(name) else None
        return held[0] if kind_of(op).keeps_range else None

    def _islands(self) -> set[str]:
        """Results that stay real although their operators could keep a quantization: what leads to one that has another quantization.

        PyTorch has no operator from quantization to quantization: where the result of a pool, a resize or a move has a quantization of its
        own, its data were dequantized after what has a quantization before.
        """
        found: set[str] = set()
        for name, quantization in self._places.following.items():
            op = self._network.producers.get(name)
            if op is None or not kind_of(op).keeps_range or op.kind in ("Concat", "Relu"):
                continue
            between: set[str] = set()
            waiting, before = list(self._network.data(op)), None
            while waiting and before is None:
                item = waiting.pop()
                before = self._places.following.get(item)
                made = self._network.producers.get(item)
                if before is None and made is not None and kind_of(made).keeps_range and item not in between:
                    between.add(item)
                    waiting += self._network.data(made)
            if before is not None and (before.dtype, before.quantization) != (quantization.dtype, quantization.quantization):
                found |= between
        return found

    def _leads_to_layer(self, name: str) -> bool:
        """Whether a layer or an operator with a quantization follows. After the last one, where a model has been dequantized no file
        says."""
        waiting, seen = [name], {name}
        while waiting and len(seen) < 10_000:
            for op in self._network.consumers.get(waiting.pop(), []):
                if any(output in self._places.following or output in self._layers for output in op.outputs):
                    return True
                new = [output for output in op.outputs if output and output not in seen]
                seen.update(new)
                waiting += new
        return False

    def _round_data(self, module: str, data: list[str]) -> None:
        """Real data of a layer under training that rounds them itself."""
        quantization = self._data.get(same_path(module))
        for name in data[:1]:
            if quantization is not None:
                self._quantizations[name] = quantization
                self._real[name] = self._round_tensor(name, name, quantization, f"{name}/{module}")

    def _require_quantization(self, module: str, op: Op, data: list[str]) -> None:
        parameters = self._network.parameters
        weights = self._network.dequantized_constant(op.inputs[1])
        if parameters.trained or weights is None or module in parameters.dynamic or not self._is_static:
            return
        without = [name for name in data if name not in self._quantizations]
        if without:
            raise InvalidModelError(
                f"the data of {module!r}, {without[0]!r} in the graph, have no quantization parameters, but its weights are quantized",
                where=module,
                remedy="The operator that computes these data has no scale in the state_dict (ELU, PReLU and Softmax have none), or runs "
                "in float. A TorchScript file of the quantized model (torch.jit.trace) holds everything.",
                rule="data-without-scale",
            )

    @property
    def _is_static(self) -> bool:
        """Whether the network has any quantization of values; one of weights alone has none."""
        parameters = self._network.parameters
        return bool(parameters.results or parameters.inputs or parameters.data or parameters.functions)

    def _round_tensor(self, name: str, computed: str, quantization: QParams, called: str = "") -> str:
        """A tensor with its quantization and back; returns the name of its float values, which keep the tensor's name where others see
        it."""
        network = self._network
        tensor = network[name]
        if quantization.runs_in_float:
            return self._decompose_rounding(computed, quantization, called or name)
        on, limited = split_limits(quantization)
        if limited:
            bounds = [network.add(f"{name}/limit", Tensor("", "float32", (), bound)) for bound in limited]
            clipped = network.add(f"{name}/limited", Tensor("", "float32", tensor.shape))
            self._ops.append(Op("Clip", (computed, *bounds), (clipped,), {}, ""))
            computed = clipped
        stored = network.add(f"{called or name}/quantized", Tensor("", quantization.dtype, tensor.shape, None, on))
        is_input = name in network.graph.inputs or bool(called)
        real = network.add(f"{called or name}/real", Tensor("", "float32", tensor.shape)) if is_input else name
        self._ops.append(Op("Quantize", (computed,), (stored,), {}, ""))
        self._ops.append(Op("Dequantize", (stored,), (real,), {}, ""))
        return real

    def _decompose_rounding(self, name: str, quantization: QParams, called: str) -> str:
        """The float values of data rounded as the quantization says, part by part."""
        q, network = quantization.quantization, self._network
        point, (low, high) = np.float32(q.zero_point[0]), q.limits(quantization.dtype)
        parts: list[tuple[str, list[Any]]] = [("Div", [q.scale[0]]), ("Add", [point]), ("Round", []), ("Clip", [low, high])]
        for kind, numbers in [*parts, ("Sub", [point]), ("Mul", [q.scale[0]])]:
            constants = [network.add(f"{called}/number", Tensor("", "float32", (), np.asarray(number, np.float32))) for number in numbers]
            result = network.add(f"{called}/{kind.lower()}", Tensor("", "float32", network[name].shape))
            self._ops.append(Op(kind, (name, *constants), (result,), {}, ""))
            name = result
        return name
