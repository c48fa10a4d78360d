"""Reads the parameters of a network from a file without a graph: a state_dict that torch.save wrote, or tensors in .safetensors.

In .safetensors torchao stores a quantized weight as several tensors, `0._weight_qdata`, `0._weight_scale` …, which are put together here.
The metadata have a JSON text under the name of the weight, with its class, the names of its parts and further attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import canonical_dtype
from qconvert.checkpoints.safetensors import is_safetensors, read_checkpoint
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.formats.torch.engines import set_engine_arithmetic
from qconvert.formats.torch.states.converted_modules import read_converted
from qconvert.formats.torch.states.entries import Entries, plain_tensor
from qconvert.formats.torch.states.grouped_weights import read_blocks, rounding_of_data, weight
from qconvert.formats.torch.states.oneflow import Observers, has_observers, read_observed
from qconvert.formats.torch.states.trained_modules import is_trained, read_trained
from qconvert.formats.torch.stored_values import StoredTensor, TorchType, WrappedTensor
from qconvert.formats.torch.unpickler import unpickle_entry
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_PRODUCER
from qconvert.plugins import Parameters


def safe_tensors(path: Path) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors of a file and of the others of its checkpoint, by name.

    Raises:
        QConvertError: see read_checkpoint().
    """
    found = read_checkpoint(path)
    tensors = {name: StoredTensor(array, canonical_dtype(array.dtype), array.shape) for name, array in found.tensors.items()}
    try:
        return _join_parts(tensors, {name: json.loads(text) for name, text in found.metadata.items() if text[:1] == "{"})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"the header is damaged: {type(error).__name__} {error}", rule="damaged-header") from error


def _join_parts(tensors: dict[str, StoredTensor], classes: Mapping[str, Mapping[str, Any]]) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors, those of torchao's classes put together from their parts."""
    found: dict[str, StoredTensor | WrappedTensor] = dict(tensors)
    for name, said in classes.items():
        if said.get("_type") == "Tensor":
            continue
        module, _, own = name.rpartition(".")
        names = {part: f"{module}{'.' if module else ''}_{own}_{part}" for part in said["_tensor_data_names"]}
        parts = {part: found.pop(key) for part, key in names.items()}
        kept = {
            key: TorchType(str(value.get("_data"))) if isinstance(value, dict) and value.get("_type") == "torch.dtype" else value
            for key, value in said["_data"].items()
        }
        shape = parts["qdata"].shape if "qdata" in parts else ()
        found[name] = WrappedTensor(f"torchao.quantization.{said['_type']}", shape, {**kept, **parts})
    return found


#: Entries of a dictionary around a state_dict, as training scripts name them.
_AROUND = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights")
_MOST_ENTRIES = 50_000


def read_parameters(path: Path, options: Mapping[str, Any]) -> Parameters:
    """The tensors and quantizations in a file without a graph.

    Args:
        path: of the file.
        options: "oneflow", "modules", "round_data", and "engine", see formats/torch/engines.py.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged.
        UnsupportedError: it holds no state_dict, or one with what is not covered.
        OptionError: it holds a graph of its own, or an option says nothing that is known.
    """
    how, places = Observers.of(options.get("oneflow", "")), _places(options.get("modules", ""))
    with np.errstate(all="ignore"):
        try:
            entries = Entries(_state(path))
            found = (
                _read_torchao(entries)
                or read_blocks(entries, path, round_data=bool(options.get("round_data")))
                or _read_torch(entries, how, options.get("engine", ""))
            )
        except RecursionError as error:
            raise InvalidModelError("the values are nested too deeply", rule="nested-too-deeply") from error
    metadata = {SOURCE_FORMAT: "torch", SOURCE_PRODUCER: "a state_dict of PyTorch", **found.metadata}
    return replace(found, metadata=metadata, places=places)


def _read_torch(entries: Entries, how: Observers, engine: str) -> Parameters:
    if has_observers(entries):
        return read_observed(entries, how)
    if is_trained(entries):
        return read_trained(entries)
    return replace(read_converted(entries), finished=partial(set_engine_arithmetic, wanted=engine))


def _read_torchao(entries: Entries) -> Parameters | None:
    """Weights of torchao's classes next to plain tensors; None where there are none."""
    wrapped = {name: value for name, value in entries.values.items() if isinstance(value, WrappedTensor)}
    if not wrapped:
        return None
    weights = {name: weight(value, name) for name, value in wrapped.items()}
    tensors = {name: tensor for name, (tensor, _) in weights.items()}
    decodings = {name: decoding for name, (_, decoding) in weights.items() if decoding is not None}
    rounding = {name.removesuffix(".weight"): rounding_of_data(value, name) for name, value in wrapped.items()}
    for name, value in entries.values.items():
        if isinstance(value, StoredTensor):
            tensors[name] = plain_tensor(value, name)
    return Parameters(tensors, dynamic={name: how for name, how in rounding.items() if how}, decodings=decodings)


def _state(path: Path) -> Mapping[str, Any]:
    """The entries of the file's state_dict, by name."""
    from qconvert.formats.torch.reader import holds_graph, open_archive

    if is_safetensors(path):
        return safe_tensors(path)
    archive = open_archive(path)
    if holds_graph(archive):
        raise OptionError("the file has its own graph", remedy="Leave out --graph.", rule="option-not-applicable")
    state = _find_state_dict(unpickle_entry(archive)) if "data.pkl" in archive else None
    if state is None:
        raise UnsupportedError(
            "the file holds no state_dict",
            remedy="Save the state_dict: torch.save(model.state_dict(), 'weights.pth')",
            rule="state-missing",
        )
    if len(state) > _MOST_ENTRIES:
        raise InvalidModelError(f"the state_dict has {len(state)} entries; at most {_MOST_ENTRIES} are read", rule="too-many-entries")
    return state


def _find_state_dict(found: Any, inside: Sequence[str] = _AROUND) -> Mapping[str, Any] | None:
    """The state_dict in a dictionary that may hold more: counters, the optimizer's state."""
    if not isinstance(found, dict):
        return None
    if any(isinstance(value, (StoredTensor, WrappedTensor)) for value in found.values()):
        return {str(key): value for key, value in found.items()}
    return next((state for name in inside if (state := _find_state_dict(found.get(name), ())) is not None), None)


def _places(text: str) -> dict[str, str]:
    """The option --modules: "module=tensor; …"."""
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        module, equals, tensor = (item.strip() for item in part.partition("="))
        if not equals or not module or not tensor:
            raise OptionError(
                f"--modules {part!r} is not of the form module=tensor",
                remedy="Write it like --modules 'block.add=/block/Add_output_0'.",
                rule="malformed-option",
            )
        found[module] = tensor
    return found
