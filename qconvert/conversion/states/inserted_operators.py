"""Inserts what a file says of the data of its modules: Quantize and Dequantize, rounding at each run, and another order or factors of
inputs. A pass makes quantized operators of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.conversion.states.network import Network, same_path
from qconvert.conversion.states.places import Places
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.graph import Array, Op, Shape, Tensor
from qconvert.operators import kind_of
from qconvert.passes.encodings.entries import split_limits


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
        if not name or kind_of(op).dequantizes or self._network[name].dtype != "float32":
            return None
        found = self._places.following.get(name)
        if found is not None or self._network.parameters.trained or name in self._places.inner or name not in kind_of(op).results_of(op):
            return found
        held = [self._quantizations.get(item) for item in data]
        if not held or any(item is None for item in held) or name in self._kept_real:
            return None
        if (fixed := self._network.parameters.fixed.get(op.kind)) is not None:
            return fixed if self._leads_to_layer(name) else None
        return held[0] if kind_of(op).keeps_range else None

    def _islands(self) -> set[str]:
        """Results that stay real although their operators could keep a quantization: what leads to one that has another quantization.

        PyTorch has no operator from quantization to quantization: where the result of a pool, a resize or a move has a quantization of its
        own, its data were dequantized after what has a quantization before.
        """
        found: set[str] = set()
        for name, quantization in self._places.following.items():
            op = self._network.producers.get(name)
            if op is None or not kind_of(op).keeps_range or kind_of(op).chooses or op.kind == "Relu":
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
            constants = [network.add_constant(f"{called}/number", np.asarray(number, np.float32)) for number in numbers]
            result = network.add(f"{called}/{kind.lower()}", Tensor("", "float32", network[name].shape))
            self._ops.append(Op(kind, (name, *constants), (result,), {}, ""))
            name = result
        return name


_LOWEST, _HIGHEST = -128.0, 127.0
_EPSILON = {"rows_symmetric": float(np.finfo(np.float32).eps), "rows_affine": float(np.finfo(np.float32).eps)}


def round_at_run_time(network: Network, layers: Mapping[str, str]) -> None:
    """Changes the layers that parameters.dynamic names.

    Raises:
        UnsupportedError: such a layer is no linear one.
    """
    if not network.parameters.dynamic:
        return
    ops: list[Op] = []
    for op in network.ops:
        how = network.parameters.dynamic.get(layers.get(op.outputs[0], "")) if op.outputs else None
        if how is None or layers.get(op.outputs[0]) is None:
            ops.append(op)
            continue
        if not kind_of(op).is_matrix_product:
            raise _dynamic_error(op)
        if how in ("rows_symmetric", "rows_affine"):
            data = _Rows(network, ops, op).round_rows(op.inputs[0], how)
            ops.append(op.with_input(0, data))
        else:
            ops.append(_with_arithmetic(network, op, how))
    network.replace_ops(ops)


def _dynamic_error(op: Op) -> UnsupportedError:
    return UnsupportedError(f"{op.kind} with dynamic quantization of its data is not covered", where=str(op), rule="dynamic-operator")


def _with_arithmetic(network: Network, op: Op, how: str) -> Op:
    """The operator on its stored weights, with the rounding of its data as an attribute."""
    weights = network.dequantized_constant(op.inputs[1])
    if weights is None or "arithmetic" not in kind_of(op).attributes:
        raise _dynamic_error(op)
    return op.with_input(1, weights.name).with_attributes(arithmetic=how)


class _Rows:
    """Rows with quantizations of their own, part by part, as torchao computes them in float32."""

    def __init__(self, network: Network, ops: list[Op], op: Op) -> None:
        self._network, self._ops, self._name = network, ops, op.outputs[0]

    def round_rows(self, data: str, how: str) -> str:
        """The float values of data whose every row is rounded onto 8 bits by its own range."""
        shape = self._network[data].shape
        ends = None if shape is None else (*shape[:-1], 1)
        low, high = (self._add_op(kind, [data, self._axis()], ends, keepdims=1) for kind in ("ReduceMin", "ReduceMax"))
        low, high = self._add_op("Min", [low, self._number(0)], ends), self._add_op("Max", [high, self._number(0)], ends)
        if how == "rows_symmetric":
            span = self._add_op("Max", [self._add_op("Neg", [low], ends), high], ends)
            steps = (_HIGHEST - _LOWEST) / 2
        else:
            span, steps = self._add_op("Sub", [high, low], ends), _HIGHEST - _LOWEST
        scale = self._add_op("Max", [self._add_op("Div", [span, self._number(steps)], ends), self._number(_EPSILON[how])], ends)
        reciprocal = self._add_op("Div", [self._number(1), scale], ends)
        rounded = self._add_op("Round", [self._add_op("Mul", [data, reciprocal], shape)], shape)
        if how == "rows_symmetric":
            return self._add_op("Mul", [self._add_op("Clip", [rounded, *self._limits()], shape), scale], shape)
        point = self._add_op("Sub", [self._number(_LOWEST), self._add_op("Round", [self._add_op("Div", [low, scale], ends)], ends)], ends)
        point = self._add_op("Clip", [point, *self._limits()], ends)
        stored = self._add_op("Clip", [self._add_op("Add", [rounded, point], shape), *self._limits()], shape)
        return self._add_op("Mul", [self._add_op("Sub", [stored, point], shape), scale], shape)

    def _add_op(self, kind: str, inputs: list[str], shape: tuple[int | str, ...] | None, **attributes: int) -> str:
        name = self._network.add(f"{self._name}/{kind.lower()}", Tensor("", "float32", shape))
        self._ops.append(Op(kind, tuple(inputs), (name,), attributes, ""))
        return name

    def _number(self, value: float) -> str:
        return self._network.add_constant(f"{self._name}/number", np.asarray(value, np.float32))

    def _limits(self) -> list[str]:
        return [self._number(_LOWEST), self._number(_HIGHEST)]

    def _axis(self) -> str:
        return self._network.add_constant(f"{self._name}/axis", np.array([-1], np.int64))


def adjust_inputs(network: Network, layers: Mapping[str, str]) -> None:
    """Put a Gather before the layers that parameters.orders names, and a Mul before those of parameters.factors.

    Layers that read the same data in the same order, or times the same factors, share the operator.

    Args:
        network: is changed.
        layers: operator's result -> its module.

    Raises:
        UnsupportedError: such a layer is no linear one.
    """
    if not network.parameters.orders and not network.parameters.factors:
        return
    adjusted = _Adjusted(network)
    for op in network.ops:
        module = layers.get(op.outputs[0], "") if op.outputs else ""
        order, factors = network.parameters.orders.get(module), network.parameters.factors.get(module)
        if order is None and factors is None:
            adjusted.ops.append(op)
            continue
        if not kind_of(op).is_matrix_product:
            raise UnsupportedError(
                f"another order of the inputs of a {op.kind} is not covered", where=str(op), rule="act-order-not-covered"
            )
        data = op.inputs[0]
        if factors is not None:
            data = adjusted.data(data, Op("Mul", (data, f"{module}.factors"), ("",), {}, op.source), factors)
        if order is not None:
            data = adjusted.data(data, Op("Gather", (data, f"{module}.order"), ("",), {"axis": -1}, op.source), order)
        adjusted.ops.append(op.with_input(0, data))
    network.replace_ops(adjusted.ops)


class _Adjusted:
    """The operators with those that adjust data, each made once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._made: dict[tuple[str, str, Shape | None, bytes], str] = {}
        self.ops: list[Op] = []

    def data(self, name: str, op: Op, values: Array) -> str:
        """The result of an operator on data and a constant, whose wanted name is its second input."""
        before = self._network.producers.find(name, "Reshape")
        source = before.inputs[0] if before is not None else name  # rows that each layer makes for itself
        key = op.kind, source, self._network[name].shape, values.tobytes()
        if key not in self._made:
            constant = self._network.add_constant(op.inputs[1], values)
            made = self._network.add(f"{name}/{op.kind.lower()}", Tensor("", self._network[name].dtype, self._network[name].shape))
            self.ops.append(replace(op, inputs=(name, constant), outputs=(made,)))
            self._made[key] = made
        return self._made[key]
