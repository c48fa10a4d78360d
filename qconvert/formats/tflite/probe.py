"""Copies of a .tflite model for checks: one that LiteRT accepts, one whose outputs are all its tensors, one without some operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite import schema
from qconvert.formats.tflite.ops.elementwise import COMPARISONS
from qconvert.formats.tflite.packing import pack_parts, unpack_model
from qconvert.formats.tflite.tensors import DTYPE_NUMBERS, RESOURCE, read_tensors
from qconvert.formats.tflite.verify import verified_root

#: The inputs of an SVDF that are its bias and its memory.
_BIAS, _MEMORY = 3, 4
#: Which inputs of a convolution are its data and its bias.
_CONVOLUTIONS = {"CONV_2D": (0, 2), "TRANSPOSE_CONV": (2, 3)}


def accepted_copy(data: bytes) -> bytes:
    """Return the model with quantized_dimension 0 on one-dimensional tensors: LiteRT refuses the other numbers that some converters write.

    Raises:
        RuntimeRefusedError: LiteRT would read and write beyond a tensor.
    """
    model = unpack_model(verified_root(data), data)
    _require_memories(model)
    _require_biases(model)
    changed = False
    for tensor in (tensor for subgraph in model.subgraphs for tensor in subgraph.tensors):
        one_dimensional = tensor.shape is not None and len(tensor.shape) == 1
        if one_dimensional and tensor.quantization is not None and tensor.quantization.quantizedDimension:
            tensor.quantization.quantizedDimension = 0
            changed = True
    return b"".join(pack_parts(model)) if changed else data


def require_for_micro(data: bytes) -> None:
    """Refuse a model that would end the process: an SVDF without a bias, which tflite-micro reads all the same, and a comparison of int8
    with a scale of 1 or more (QuantizeMultiplierSmallerThanOneExp in comparisons.cc).

    Raises:
        RuntimeRefusedError: it would crash the process.
    """
    model = unpack_model(verified_root(data), data)
    for builtin in COMPARISONS:
        for subgraph, _, inputs in _operators(model, builtin):
            operands = [subgraph.tensors[index] for index in inputs if index >= 0]
            scales = [one.quantization.scale for one in operands if one.type == DTYPE_NUMBERS["int8"] and one.quantization is not None]
            largest = max((float(scale[0]) for scale in scales if scale is not None and len(scale)), default=0.0)
            if largest >= 1:
                raise RuntimeRefusedError(
                    f"{builtin} compares int8 data with a scale of {largest:g}; tflite-micro's kernel takes scales below 1, "
                    "and ends the process at others",
                    remedy="Convert the model with --target tflite-micro, which compares such data in float.",
                    rule="kernel-aborts",
                )
    for _, _, inputs in _operators(model, "SVDF"):
        if len(inputs) > _BIAS and inputs[_BIAS] < 0:
            raise RuntimeRefusedError(
                "an SVDF has no bias; tflite-micro reads one all the same, which crashes the process", rule="kernel-reads-outside"
            )


def _require_memories(model: Any) -> None:
    """Refuse an SVDF of int8 with a memory of int8, which tflite-micro has: LiteRT takes it for int16, with twice as many bytes."""
    for subgraph, _, inputs in _operators(model, "SVDF"):
        if len(inputs) > _MEMORY and {subgraph.tensors[inputs[index]].type for index in (0, _MEMORY)} == {DTYPE_NUMBERS["int8"]}:
            raise RuntimeRefusedError(
                "the memory of an SVDF is int8; LiteRT reads and writes it as int16, beyond its end",
                remedy="Run the model with --kernels tflite-micro:reference, which has this operator.",
                rule="kernel-reads-outside",
            )


def _require_biases(model: Any) -> None:
    """Refuse int32 biases of int16 data whose convolution does not state their type: LiteRT then reads int64, whatever the tensor says."""
    for builtin, (data, bias) in _CONVOLUTIONS.items():
        for subgraph, op, inputs in _operators(model, builtin):
            types = [subgraph.tensors[inputs[index]].type for index in (data, bias) if len(inputs) > bias and inputs[index] >= 0]
            stated = getattr(op.builtinOptions, "quantizedBiasType", 0)
            if types == [DTYPE_NUMBERS["int16"], DTYPE_NUMBERS["int32"]] and not stated:
                raise RuntimeRefusedError(
                    f"the bias of {builtin} is int32; for int16 data LiteRT reads it as int64, beyond its end, "
                    "unless the operator states its quantized_bias_type",
                    remedy="Convert the model to .tflite with qconvert convert, which states the type, and run the result.",
                    rule="kernel-reads-outside",
                )


def _operators(model: Any, builtin: str) -> Iterator[tuple[Any, Any, list[int]]]:
    """Yield the subgraph of each builtin operator of a name, the operator, and its inputs."""
    code = getattr(schema.BuiltinOperator, builtin)
    for subgraph in model.subgraphs:
        for op in subgraph.operators:
            if schema.builtin_number(model.operatorCodes[op.opcodeIndex]) == code:
                yield subgraph, op, schema.numbers_of(op.inputs)


def with_outputs(data: bytes, wanted: frozenset[str] | None = None) -> tuple[bytes, list[str]]:
    """Return the model with what operators compute as graph outputs, and the canonical names of these in the same order.

    Kernels stay the same; a delegate must hand out each tensor, so nothing is fused away.

    Args:
        data: the model.
        wanted: canonical names; by default all.
    """
    view = verified_root(data)
    names, model = read_tensors(view, data, Draft()), unpack_model(view, data)
    subgraph = model.subgraphs[0]
    inputs = set(schema.numbers_of(subgraph.inputs))
    found = dict.fromkeys(index for op in subgraph.operators for index in schema.numbers_of(op.outputs) if index not in inputs)
    found = {index: None for index in found if subgraph.tensors[index].type != DTYPE_NUMBERS[RESOURCE]}
    kept = [index for index in found if wanted is None or names[index] in wanted]
    subgraph.outputs = kept
    model.signatureDefs = None
    return b"".join(pack_parts(model)), [names[index] for index in kept]


def without_operators(data: bytes, gone: frozenset[str], inputs: Sequence[tuple[str, str]], outputs: Sequence[tuple[str, str]]) -> bytes:
    """Return the model without the operators that compute tensors of the names `gone`, with further inputs and with these outputs.

    Args:
        data: the model.
        gone: canonical names, as all names here.
        inputs, outputs: each with its name in the copy; a RESHAPE makes a tensor of another name.
    """
    view = verified_root(data)
    numbers = {name: index for index, name in enumerate(read_tensors(view, data, Draft()))}
    model = unpack_model(view, data)
    subgraph = model.subgraphs[0]
    removed = {numbers[name] for name in gone}
    subgraph.operators = [op for op in subgraph.operators if removed.isdisjoint(schema.numbers_of(op.outputs))]
    copies = _Copies(model, numbers)
    given = [copies.rename(name, wanted, copies.first) for name, wanted in inputs]
    subgraph.outputs = np.array([copies.rename(name, wanted, copies.last) for name, wanted in outputs], np.int32)
    subgraph.inputs = np.array([*schema.numbers_of(subgraph.inputs), *given], np.int32)
    subgraph.operators = [*copies.first, *subgraph.operators, *copies.last]
    model.signatureDefs = None
    return b"".join(pack_parts(model))


class _Copies:
    """Tensors under second names, with the operators that copy them: `first` before all others, `last` after them."""

    def __init__(self, model: Any, numbers: Mapping[str, int]) -> None:
        self._model, self._subgraph, self._numbers = model, model.subgraphs[0], numbers
        self.first: list[Any] = []
        self.last: list[Any] = []

    def rename(self, name: str, wanted: str, operators: list[Any]) -> int:
        """Return the index of a tensor `wanted`, which a RESHAPE copies: to `name` if it is in `first`, from `name` if it is in `last`."""
        number = self._numbers[name]
        if name == wanted:
            return number
        own = self._subgraph.tensors[number]
        other = copy(own)
        other.name, other.buffer = wanted, 0
        self._subgraph.tensors = [*self._subgraph.tensors, other]
        new = len(self._subgraph.tensors) - 1
        reshape = schema.BuiltinOperator.RESHAPE
        code = schema.OperatorCodeT(builtinCode=reshape, deprecatedBuiltinCode=reshape, version=1)
        self._model.operatorCodes = [*self._model.operatorCodes, code]
        sizes = own.shape if own.shapeSignature is None else own.shapeSignature
        inputs, outputs = (np.array([index], np.int32) for index in ((new, number) if operators is self.first else (number, new)))
        operators.append(
            schema.OperatorT(
                opcodeIndex=len(self._model.operatorCodes) - 1,
                builtinOptionsType=schema.BuiltinOptions.ReshapeOptions,
                builtinOptions=schema.ReshapeOptionsT(newShape=np.array([] if sizes is None else sizes, np.int32)),
                inputs=inputs,
                outputs=outputs,
            )
        )
        return new
