"""Inserts what a file says of the data of its modules: Quantize and Dequantize, rounding at each run, and another order or factors of
inputs. A pass makes quantized operators of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.checkpoints.activations import Activations
from qconvert.conversion.states.network import Network, same_path
from qconvert.conversion.states.places import Places
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.graph import Array, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import output_shapes
from qconvert.operators.values import Value, Values, apply, clip, maximum, minimum, reduce, reshape
from qconvert.passes.encoding_entries import split_limits


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
        module = self._layers.get(op.name) if op.outputs else None
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
        if (fixed := self._network.fixed(op)) is not None:
            return fixed if self._leads_to_layer(name) else None
        return held[0] if kind_of(op).keeps_range else None

    def _islands(self) -> set[str]:
        """Results that stay real although their operators could keep a quantization: what leads to one that has another quantization.

        PyTorch has no operator from quantization to quantization: where the result of a pool, a resize or a move has a quantization of its
        own, its data were dequantized after what has a quantization before.
        """
        found: set[str] = set()
        producers = self._network.producers
        for name, quantization in self._places.following.items():
            op = producers.get(name)
            if op is None or not kind_of(op).keeps_range or kind_of(op).chooses or producers.find(name, "Relu"):
                continue
            between: set[str] = set()
            waiting, before = list(self._network.data(op)), None
            while waiting and before is None:
                item = waiting.pop()
                before = self._places.following.get(item)
                made = producers.get(item)
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
        scale, point = quantization.quantization.step, quantization.quantization.point
        steps = _Part(self._network, self._ops, called, name) / scale + point
        steps = clip(apply("Round", steps), *quantization.quantization.limits(quantization.dtype))
        return str(((steps - point) * scale).name)


@dataclass(frozen=True, eq=False)
class _Part(Values):
    """A float value on the way from one tensor to another: its operators and numbers are named after a tensor.

    Attributes:
        network: gets the tensors.
        ops: get the operators.
        hint: the tensor.
        name: of this value.
    """

    network: Network
    ops: list[Op]
    hint: str
    name: str

    def apply(self, kind: str, operands: Sequence[Any], attributes: Mapping[str, Any], outputs: int) -> _Part:
        names = [item.name if isinstance(item, _Part) else self._constant(item) for item in operands]
        (shape,) = output_shapes({name: self.network[name] for name in names}, Op(kind, tuple(names), ("",), attributes))
        return replace(self, name=self.network.append(self.ops, kind, names, self.hint, shape, **attributes))

    def _constant(self, value: Any) -> str:
        if isinstance(value, np.ndarray):
            return self.network.add_constant(f"{self.hint}/axis", value)
        return self.network.add_constant(f"{self.hint}/number", np.asarray(value, np.float32))


_LOWEST, _HIGHEST = -128.0, 127.0
_EPSILON = float(np.finfo(np.float32).eps)
_LARGEST_FP4, _SMALLEST = 6.0, float(np.finfo(np.float32).smallest_normal)


def round_at_run_time(network: Network, layers: Mapping[str, str]) -> None:
    """Changes the layers that parameters.dynamic names.

    Raises:
        UnsupportedError: such a layer is no linear one.
    """
    if not network.parameters.dynamic:
        return
    ops: list[Op] = []
    for op in network.ops:
        how = network.parameters.dynamic.get(layers.get(op.name, "")) if op.outputs else None
        if how is None or layers.get(op.name) is None:
            ops.append(op)
            continue
        if not kind_of(op).is_matrix_product:
            raise _dynamic_error(op)
        if how in ("rows_symmetric", "rows_affine"):
            data = _round_rows(_Part(network, ops, op.name, op.inputs[0]), how)
            ops.append(op.with_input(0, data.name))
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


def _round_rows(data: Value, how: str) -> Value:
    """Float values whose every row is rounded onto 8 bits by its own range, part by part, as torchao computes them in float32."""
    low, high = reduce("ReduceMin", data, [-1]), reduce("ReduceMax", data, [-1])
    low, high = minimum(low, 0), maximum(high, 0)
    symmetric = how == "rows_symmetric"
    span, steps = (maximum(-low, high), (_HIGHEST - _LOWEST) / 2) if symmetric else (high - low, _HIGHEST - _LOWEST)
    scale = maximum(span / steps, _EPSILON)
    rounded = apply("Round", data * (1 / scale))
    if symmetric:
        return clip(rounded, _LOWEST, _HIGHEST) * scale
    point = clip(_LOWEST - apply("Round", low / scale), _LOWEST, _HIGHEST)
    return (clip(rounded + point, _LOWEST, _HIGHEST) - point) * scale


def _round_blocks(blocks: Any, how: Activations, round_scales: Callable[[Any], Any]) -> Any:
    """Float values whose last axis is a block of NVFP4: FP4 with a scale of E4M3, which has a second level that the file states.

    The scale of a block takes its largest value to 6. One that E4M3 rounds to 0 makes the block 0, as in TensorRT-LLM's and vLLM's kernels.
    """
    assert how.scale is not None
    wanted = reduce("ReduceMax", apply("Abs", blocks), [-1]) / _LARGEST_FP4
    stored = round_scales(wanted * how.scale if how.scale_divides else wanted / how.scale)
    scale = stored / how.scale if how.scale_divides else stored * how.scale
    steps = clip(blocks / maximum(scale, _SMALLEST), -_LARGEST_FP4, _LARGEST_FP4)
    size = apply("Abs", steps)
    halves, ones, twos = (clip(size, low, high) - low for low, high in ((0.0, 2.0), (2.0, 4.0), (4.0, _LARGEST_FP4)))
    rounded = apply("Round", halves * 2.0) / 2.0 + apply("Round", ones) + apply("Round", twos / 2.0) * 2.0
    return apply("Sign", steps) * rounded * scale


def adjust_inputs(network: Network, layers: Mapping[str, str]) -> None:
    """Put a Gather before the layers that parameters.orders names, a Mul before those of parameters.factors, and what rounds data before
    those of parameters.rounded: a Quantize and Dequantize, and for NVFP4 those of the scales of blocks among operators in float.

    Layers that read the same data in the same order, times the same factors, or rounded alike, share the operators.

    Args:
        network: is changed.
        layers: operator's result -> its module.

    Raises:
        UnsupportedError: such a layer is no linear one.
    """
    parameters = network.parameters
    if not parameters.orders and not parameters.factors and not parameters.rounded:
        return
    adjusted = _Adjusted(network)
    for op in network.ops:
        module = layers.get(op.name, "") if op.outputs else ""
        order, factors, rounded = parameters.orders.get(module), parameters.factors.get(module), parameters.rounded.get(module)
        if order is None and factors is None and rounded is None:
            adjusted.ops.append(op)
            continue
        if not kind_of(op).is_matrix_product:
            raise UnsupportedError(
                f"another order of the inputs of a {op.kind} is not covered", where=str(op), rule="act-order-not-covered"
            )
        data = op.inputs[0]
        if factors is not None:
            data = adjusted.data(data, "Mul", f"{module}.factors", factors, op.source)
        if rounded is not None:
            data = adjusted.round_as(data, rounded, op.source)
        if order is not None:
            data = adjusted.data(data, "Gather", f"{module}.order", order, op.source, axis=-1)
        adjusted.ops.append(op.with_input(0, data))
    network.replace_ops(adjusted.ops)


class _Adjusted:
    """The operators with those that adjust data, each made once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._made: dict[tuple[Hashable, ...], str] = {}
        self.ops: list[Op] = []

    def data(self, name: str, kind: str, constant: str, values: Array, source: str, **attributes: int) -> str:
        """The result of an operator of a kind on data and a constant, which has the data's shape."""
        tensor = self._network[name]
        key = kind, *self._find_data(name), values.tobytes()
        if key not in self._made:
            inputs = name, self._network.add_constant(constant, values)
            self._made[key] = self._network.append(self.ops, kind, inputs, name, tensor.shape, tensor.dtype, source, **attributes)
        return self._made[key]

    def round_as(self, name: str, how: Activations, source: str) -> str:
        """The float values of data that a checkpoint states to be rounded by a scale that it has."""
        assert how.scale is not None
        if not how.has_two_levels:
            return self.round(name, QParams(how.dtype, Quantization.per_tensor(how.scale, how.zero)), source)
        key = "blocks", *self._find_data(name), how
        if key not in self._made:
            shape = self._network[name].shape or ()
            size = shape[-1] if shape else None
            if not isinstance(size, int) or size % how.group:
                raise UnsupportedError(
                    f"data of shape {list(shape)} are not divided into blocks of {how.group}",
                    where=f"tensor {name!r}",
                    rule="blocks-do-not-fit",
                )
            same = [0] * (len(shape) - 1)
            blocks = reshape(_Part(self._network, self.ops, name, name), [*same, size // how.group, how.group])

            def round_scales(scales: _Part) -> _Part:
                return replace(scales, name=self.round(scales.name, QParams("float8e4m3fn", Quantization.per_tensor(1.0)), source))

            self._made[key] = reshape(_round_blocks(blocks, how, round_scales), [*same, size]).name
        return self._made[key]

    def round(self, name: str, wanted: QParams, source: str) -> str:
        """The float values of data that are rounded to a quantization."""
        key = *self._find_data(name), wanted.dtype, wanted.quantization.key
        if key not in self._made:
            shape = self._network[name].shape
            stored = self._network.add(f"{name}/quantized", Tensor("", wanted.dtype, shape, None, wanted.quantization))
            self._made[key] = self._network.add(f"{name}/rounded", Tensor("", self._network[name].dtype, shape))
            self.ops += [Op("Quantize", (name,), (stored,), {}, source), Op("Dequantize", (stored,), (self._made[key],), {}, source)]
        return self._made[key]

    def _find_data(self, name: str) -> tuple[Hashable, ...]:
        """What layers read: rows that each makes for itself are those of one tensor."""
        before = self._network.producers.find(name, "Reshape")
        return before.inputs[0] if before is not None else name, self._network[name].shape
