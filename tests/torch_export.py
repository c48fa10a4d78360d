"""torch.export archives made without PyTorch, for tests: a program of a few nodes, its weights, in both layouts."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conversion.loading import load
from qconvert.evaluate import evaluate
from qconvert.graph import Graph

#: Numbers of storage types in the JSON.
TYPES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bool": 12}


def argument(value: Any) -> dict[str, Any]:
    """A value as the JSON has it: "%x" is a tensor, "@s" a number that is known only at run time."""
    if value is None:
        return {"as_none": True}
    if isinstance(value, bool):
        return {"as_bool": value}
    if isinstance(value, int):
        return {"as_int": value}
    if isinstance(value, float):
        return {"as_float": value}
    if isinstance(value, str) and value.startswith("%"):
        return {"as_tensor": {"name": value[1:]}}
    if isinstance(value, str) and value.startswith("@"):
        return {"as_sym_int": {"as_name": value[1:]}}
    if isinstance(value, str):
        return {"as_scalar_type": TYPES[value]} if value in TYPES else {"as_string": value}
    if isinstance(value, dict):
        return value
    if all(isinstance(item, str) and item.startswith("%") for item in value) and value:
        return {"as_tensors": [{"name": item[1:]} for item in value]}
    if any(isinstance(item, str) for item in value):
        return {"as_sym_ints": [{"as_name": item[1:]} if isinstance(item, str) else {"as_int": item} for item in value]}
    return {"as_floats" if any(isinstance(item, float) for item in value) else "as_ints": list(value)}


def node(target: str, outputs: str | Sequence[str], **inputs: Any) -> dict[str, Any]:
    """A node; a target such as "aten.relu.default". Several outputs are one list, as getitem leaves it."""
    results = [argument("%" + outputs)] if isinstance(outputs, str) else [argument(["%" + name for name in outputs])]
    listed = [{"name": name.rstrip("_"), "arg": argument(value), "kind": 1} for name, value in inputs.items()]
    return {"target": f"torch.ops.{target}", "inputs": listed, "outputs": results if outputs else [], "metadata": {}, "name": str(outputs)}


def size(value: int | str) -> dict[str, Any]:
    return {"as_int": value} if isinstance(value, int) else {"as_expr": {"expr_str": f"Symbol('{value}', positive=True, integer=True)"}}


def program(
    nodes: Sequence[Mapping[str, Any]],
    inputs: Mapping[str, tuple[str, Sequence[int | str]]],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray[Any, Any]],
    changed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The JSON of a program. Weights are the buffers b_<name>; `changed` says which of them get which new value."""
    specs = [{"buffer": {"arg": {"name": f"b_{name}"}, "buffer_name": name, "persistent": True}} for name in weights]
    specs += [{"user_input": {"arg": argument("%" + name)}} for name in inputs]
    results = [{"buffer_mutation": {"arg": {"name": value}, "buffer_name": name}} for name, value in (changed or {}).items()]
    results += [{"user_output": {"arg": argument("%" + name if name else None)}} for name in outputs]
    values = {
        name: {"dtype": TYPES[dtype], "sizes": [size(item) for item in shape], "strides": [], "storage_offset": {"as_int": 0}}
        for name, (dtype, shape) in inputs.items()
    }
    graph = {"inputs": [], "outputs": [], "nodes": list(nodes), "tensor_values": values, "sym_int_values": {}}
    return {
        "graph_module": {"graph": graph, "signature": {"input_specs": specs, "output_specs": results}, "module_call_graph": []},
        "opset_version": {"aten": 10},
        "range_constraints": {},
        "schema_version": {"major": 8, "minor": 20},
        "torch_version": "2.13.0",
    }


def write(path: Path, document: Any, weights: Mapping[str, np.ndarray[Any, Any]], early: bool | str = False) -> Path:
    """The archive of a program, in the layout of today, in that of PyTorch 2.1 to 2.7, or in that of "2.8"."""
    with zipfile.ZipFile(path, "w") as archive:
        if early == "2.8":
            archive.writestr("m/models/model.json", json.dumps(document))
            archive.writestr("m/data/weights/model.pt", saved(weights))
            archive.writestr("m/data/constants/model.pt", saved({}))
            archive.writestr("m/archive_format", "pt2")
            return path
        if early:
            archive.writestr("serialized_exported_program.json", json.dumps(document))
            archive.writestr("serialized_state_dict.pt", saved(weights))
            archive.writestr("serialized_constants.pt", b"")
            archive.writestr("version", "8.1")
            return path
        config = {}
        for index, (name, data) in enumerate(weights.items()):
            steps = [step // data.itemsize for step in data.strides]
            meta = {
                "dtype": TYPES[str(data.dtype)],
                "sizes": [size(item) for item in data.shape],
                "strides": [size(step) for step in steps],
            }
            meta["storage_offset"] = {"as_int": 0}
            config[name] = {"path_name": f"weight_{index}", "is_param": True, "use_pickle": False, "tensor_meta": meta}
            archive.writestr(f"m/data/weights/weight_{index}", data.tobytes())
        archive.writestr("m/data/weights/model_weights_config.json", json.dumps({"config": config}))
        archive.writestr("m/models/model.json", json.dumps(document))
        archive.writestr("m/archive_format", "pt2")
    return path


_STORAGES = {"int8": "CharStorage", "uint8": "ByteStorage", "int32": "IntStorage", "int64": "LongStorage", "float32": "FloatStorage"}


def saved(values: Any) -> bytes:
    """What torch.save writes of dictionaries with arrays in them: a zip archive with a pickle of protocol 2."""
    storages: list[np.ndarray[Any, Any]] = []
    body = b"\x80\x02" + _encoded(values, storages) + b"."
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        for index, data in enumerate(storages):
            archive.writestr(f"archive/data/{index}", np.ascontiguousarray(data).tobytes())
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def _encoded(value: Any, storages: list[np.ndarray[Any, Any]]) -> bytes:
    """Opcodes of protocol 2."""
    if isinstance(value, np.ndarray):
        storages.append(value)
        storage = (_name("torch", _STORAGES[str(value.dtype)]), str(len(storages) - 1), "cpu", int(value.size))
        encoded = b"(" + _encoded("storage", storages) + storage[0] + b"".join(_encoded(item, storages) for item in storage[1:]) + b"tQ"
        steps = np.ascontiguousarray(value).strides
        parts = [0, value.shape, tuple(step // value.itemsize for step in steps), False]
        return _name("torch._utils", "_rebuild_tensor_v2") + b"(" + encoded + b"".join(_encoded(p, storages) for p in parts) + b"}tR"
    if isinstance(value, dict):
        return b"}(" + b"".join(_encoded(item, storages) for pair in value.items() for item in pair) + b"u"
    if isinstance(value, (tuple, list)):
        return (
            (b"(" if isinstance(value, tuple) else b"](")
            + b"".join(_encoded(item, storages) for item in value)
            + (b"t" if isinstance(value, tuple) else b"e")
        )
    if isinstance(value, Wrapped):
        return value.encoded(storages)
    return pickle.dumps(value, 2)[2:-1].split(b"q\x00")[0]


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


class Wrapped:
    """A tensor of a class that keeps others inside."""

    def __init__(self, class_name: str, shape: tuple[int, ...], parts: dict[str, Any]) -> None:
        self.class_name, self.shape, self.parts = class_name, shape, parts

    def encoded(self, storages: list[np.ndarray[Any, Any]]) -> bytes:
        module, _, name = self.class_name.rpartition(".")
        kind = _name(module, name)
        made = b"(" + kind + _name("torch", "float32") + _encoded(self.shape, storages) + b"NNNNt"
        return (
            _name("torch._tensor", "_rebuild_from_type_v2")
            + b"("
            + _name("torch._utils", "_rebuild_wrapper_subclass")
            + kind
            + made
            + (_encoded(self.parts, storages) + b"tR")
        )


def read(path: Path, **options: Any) -> Graph:
    return load(path, **options)


def run(graph: Graph, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Float values of the graph's outputs, by the evaluator."""
    found = evaluate(graph, dict(zip(graph.inputs, inputs, strict=True)))
    results = []
    for name in graph.outputs:
        quantization, stored = graph[name].quantization, np.asarray(found[name])
        results.append(
            stored if quantization is None else (stored.astype(np.float32) - np.float32(quantization.zero_point[0])) * quantization.scale[0]
        )
    return results
