"""Layers that round their data at each run: as an attribute where the canonical kinds have the rounding, else decomposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.conversion.states.network import Network
from qconvert.errors import UnsupportedError
from qconvert.graph import Op, Tensor
from qconvert.operators import kind_of

__all__ = ["round_at_run_time"]

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
        if op.kind not in ("Gemm", "MatMul"):
            raise UnsupportedError(
                f"{op.kind} with dynamic quantization of its data is not covered", where=str(op), rule="dynamic-operator"
            )
        if how in ("rows_symmetric", "rows_affine"):
            data = _Rows(network, ops, op).round_rows(op.inputs[0], how)
            ops.append(replace(op, inputs=(data, *op.inputs[1:])))
        else:
            ops.append(_with_arithmetic(network, ops, op, how))
    network.replace_ops(ops)


def _with_arithmetic(network: Network, ops: list[Op], op: Op, how: str) -> Op:
    """The operator on its stored weights, with the rounding of its data as an attribute."""
    made = next((item for item in ops if item.kind == "Dequantize" and item.outputs == (op.inputs[1],)), None)
    if made is None or "arithmetic" not in kind_of(op).attributes:
        raise UnsupportedError(f"{op.kind} with dynamic quantization of its data is not covered", where=str(op), rule="dynamic-operator")
    return replace(op, inputs=(op.inputs[0], made.inputs[0], *op.inputs[2:])).with_attributes(arithmetic=how)


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
        return self._network.add(f"{self._name}/number", Tensor("", "float32", (), np.asarray(value, np.float32)))

    def _limits(self) -> list[str]:
        return [self._number(_LOWEST), self._number(_HIGHEST)]

    def _axis(self) -> str:
        return self._network.add(f"{self._name}/axis", Tensor("", "int64", (1,), np.array([-1], np.int64)))
