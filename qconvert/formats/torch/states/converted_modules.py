"""A state_dict of modules that are quantized: torch.ao.nn.quantized of eager mode, of FX, and dynamic layers.

<m>.weight, <m>.bias                            integers with their quantization, and a real bias
<m>._packed_params._packed_params               a tuple of both: linear layers
<m>.scale, <m>.zero_point                       the quantization of what the module computes; of one element in a list (shape (1,)): of a
QuantStub <path with _>_scale_<n>, …_zero_point_<n>       FX: of a function in the code of a module, in the order of the calls
<path with _>_input_scale_<n>, …                FX: of the data of a module, where they come as float values
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.states.entries import Entries, entry_name, plain_tensor, quantization, sort_by_number
from qconvert.formats.torch.stored_values import StoredTensor, TorchType
from qconvert.graph import Quantization, Tensor
from qconvert.kernels.torch import FIXED_RESULTS, FUNCTION_NAMES
from qconvert.plugins import Parameters

_LISTED = re.compile(r"^(?P<path>.*?)(?P<data>_input)?_scale_(?P<number>\d{1,6})$")
#: Entries that say nothing of a value.
_COUNTERS = ("num_batches_tracked", "_packed_params.dtype")
_REDUCED = "dynamic layers round their data in 127 steps, as PyTorch's modules do by default: no state_dict says whether a range is reduced"


def read_converted(entries: Entries) -> Parameters:
    """Read a state_dict of quantized modules, all of them converted."""
    tensors, absent = _unpack_parameters(entries)
    is_dynamic = _are_dynamic(entries, tensors)
    results, inputs = _quantizations(entries, tensors, is_dynamic)
    data, functions = _read_fx_attributes(entries)
    for suffix in _COUNTERS:
        for module in entries.modules_with(suffix):
            entries.take(module, suffix)
    for name in entries.unused_names():
        value = entries.values[name]
        if isinstance(value, StoredTensor):
            entries.used.add(name)
            tensors[name] = plain_tensor(value, name)
        elif value is None or isinstance(value, (str, bool, int, float, TorchType)):
            entries.used.add(name)
    listed = [*results.values(), *inputs.values(), *data.values(), *(item for items in functions.values() for item in items)]
    # PyTorch's engines compute on uint8 unless a model says otherwise
    dtype = "int8" if any(item.dtype == "int8" for item in listed) else "uint8"

    def set_types(found: Mapping[str, QParams]) -> dict[str, QParams]:
        return {name: _set_type(item, dtype) for name, item in found.items()}

    return Parameters(
        tensors,
        absent,
        results=set_types(results),
        inputs=set_types(inputs),
        data=set_types(data),
        functions={name: tuple(_set_type(item, dtype) for item in items) for name, items in functions.items()},
        fixed={kind: QParams(dtype, Quantization.per_tensor(*by_type[dtype])) for kind, by_type in FIXED_RESULTS.items()},
        function_names=FUNCTION_NAMES,
        dynamic=dict.fromkeys(_layers(tensors), "dynamic_reduced") if is_dynamic else {},
        notes=(_REDUCED,) if is_dynamic and _layers(tensors) else (),
    )


def _set_type(item: QParams, dtype: str) -> QParams:
    if dtype == "int8" and item.quantization.point > 127:
        raise InvalidModelError(
            "some zero points are negative and others are above 127; one type cannot hold both", rule="contradicting-zero-points"
        )
    return replace(item, dtype=dtype)


def _layers(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(".weight") for name, tensor in tensors.items() if name.endswith(".weight") and tensor.is_quantized]


def _unpack_parameters(entries: Entries) -> tuple[dict[str, Tensor], frozenset[str]]:
    """The tensors in packed parameters, by the names that they have in the module without quantization."""
    tensors: dict[str, Tensor] = {}
    absent: set[str] = set()
    for module in entries.modules_with("_packed_params._packed_params"):
        value = entries.take(module, "_packed_params._packed_params")
        if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[0], StoredTensor):
            raise InvalidModelError("the packed parameters are not weights and a bias", where=module, rule="malformed-packed")
        for name, stored in zip(("weight", "bias"), value, strict=True):
            key = entry_name(module, name)
            if isinstance(stored, StoredTensor):
                tensors[key] = plain_tensor(stored, key)
            elif stored is None:
                absent.add(key)
            else:
                raise InvalidModelError("the packed parameters are not weights and a bias", where=module, rule="malformed-packed")
    for module in entries.modules_with("_packed_params._packed_weight"):
        raise UnsupportedError(
            "a quantized embedding in a state_dict is not covered",
            where=module,
            remedy="Save the model itself: torch.jit.trace, or .pt2.",
            rule="form-not-covered",
        )
    for module in entries.modules_with("bias"):
        if entries.values[entry_name(module, "bias")] is None:
            entries.take(module, "bias")
            absent.add(entry_name(module, "bias"))
    return tensors, frozenset(absent)


def _are_dynamic(entries: Entries, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the layers round their data at each run: these keep the scale 1.0 and zero point 0 that nothing ever set."""
    modules = entries.modules_with("scale")
    packed = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    values = [(entries.values.get(entry_name(name, "scale")), entries.values.get(entry_name(name, "zero_point"))) for name in modules]
    numbers = [
        tuple(float(np.asarray(item.data).reshape(-1)[0]) for item in pair if isinstance(item, StoredTensor) and item.data.size == 1)
        for pair in values
    ]
    return bool(packed) and set(modules) <= set(packed) and all(pair == (1.0, 0.0) for pair in numbers)


def _quantizations(entries: Entries, tensors: Mapping[str, Tensor], is_dynamic: bool) -> tuple[dict[str, QParams], dict[str, QParams]]:
    """The quantizations of results, and those of QuantStubs, by modules."""
    results: dict[str, QParams] = {}
    inputs: dict[str, QParams] = {}
    names = {*entries.values, *tensors}
    for module in entries.modules_with("scale"):
        if entry_name(module, "zero_point") not in entries.values:
            continue
        scale, zero_point = entries.numbers(module, "scale"), entries.numbers(module, "zero_point")
        if scale is None or zero_point is None or is_dynamic:
            continue
        alone = not any(entry_name(module, name) in names for name in ("weight", "bias", "running_mean"))
        found = inputs if alone and scale.shape == (1,) and zero_point.dtype == np.int64 else results
        found[module] = quantization(scale, zero_point, module)
    return results, inputs


def _read_fx_attributes(entries: Entries) -> tuple[dict[str, QParams], dict[str, tuple[QParams, ...]]]:
    """Quantizations that FX stores as attributes: of data by the path of the module, of functions by the path of the calling module."""
    data: dict[str, QParams] = {}
    functions: dict[str, list[tuple[int, QParams | None]]] = {}
    for name in entries.unused_names():
        match = _LISTED.match(name)
        if match is None:
            continue
        other = f"{match['path']}{match['data'] or ''}_zero_point_{match['number']}"
        if other not in entries.values:
            continue
        found = quantization(entries.numbers("", name), entries.numbers("", other), name)
        if match["data"]:
            data.setdefault(match["path"], found)
        else:
            functions.setdefault(match["path"], []).append((int(match["number"]), found))
    return data, sort_by_number(functions)
