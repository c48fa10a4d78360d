"""The inside of an ONNX file in onnxruntime: its inner values given out, the file cut at them, and copies of it without some operators.

The file is cut, not the canonical graph: a value at which it is cut becomes a graph input for its readers and a graph output of its
writer. Between the cuts stand islands of nodes. onnxruntime infers types and shapes, since onnx's own inference does not know the
operators of com.microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.files.system import release_memory, temporary_folder
from qconvert.graph import DTYPES, Array, Arrays, Graph, Tensor
from qconvert.graph.carried_states import parse_states
from qconvert.graph.metadata import STATES
from qconvert.plugins import LoadedModel, ModelFile, Pieces
from qconvert.runtimes.onnx_rewrites import with_onnx_nodes
from qconvert.runtimes.onnxruntime import FEW_BITS, OnnxRuntime, describe_failures, describe_values

#: Suffix of the second name of a value at which the file is cut: the graph output of the island.
_COMPUTED = "/computed"
#: onnxruntime turns a MatMul by 8-bit weights into MatMulNBits, which by default (4) rounds the other operand to int8, an error of 0.7%
#: that the whole model need not have, since whether it does so depends on the nodes around. 1 stands for float32.
_SETTINGS = {"session.qdq_matmulnbits_accuracy_level": "1"}


#: Stores channels in blocks: every value that is given out would be stored twice, and every weight.
_BLOCKED = ("NchwcTransformer",)


class OnnxInside:
    """An ONNX file whose values are known by the names of a canonical graph.

    Args:
        file: the file, with the kernels "optimized" or "unoptimized": whether onnxruntime rewrites graphs.
        graph: whose activations are wanted; a name that the file does not have is ignored.
        open_piece: the content of a part of the file -> that, loaded in another runtime of .onnx files, for one that has no inner values of
            its own; these then come from onnxruntime. None for onnxruntime.

    Raises:
        UnsupportedError: the file is too large to be cut.
        QConvertError: it cannot be read, or onnxruntime refuses it.
    """

    cuts = True

    def __init__(self, file: ModelFile, graph: Graph, open_piece: Callable[[bytes], LoadedModel] | None = None) -> None:
        self._open_piece = open_piece or self._open_in_onnxruntime
        self._model, self._optimize = load_whole_model(file.path), file.kernels == "optimized"
        wanted = {name for name, tensor in graph.tensors.items() if not tensor.is_constant} & _value_names(self._model)
        self._probe = OnnxRuntime(_with_outputs(self._model, wanted), optimize=self._optimize, keep_memory=False)
        known = describe_values((*self._probe.session.get_inputs(), *self._probe.session.get_outputs()), few=self._probe.bytes)
        if hidden := {name for name in wanted if known[name][0] in FEW_BITS}:  # as nothing makes bytes of them
            wanted -= hidden
            self._probe = OnnxRuntime(_with_outputs(self._model, wanted), optimize=self._optimize, keep_memory=False)
        self._described = {name: known[name] for name in wanted}
        self.names = frozenset(name for name in wanted if self._described[name][0] in DTYPES)

    def _open_in_onnxruntime(self, model: bytes) -> LoadedModel:
        return OnnxRuntime(model, optimize=self._optimize, settings=_SETTINGS, keep_memory=False)

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        self._probe.reset()

    def values(self, feed: Arrays) -> dict[str, Array]:
        states = self._probe.states
        return {name: value for name, value in {**self._probe.run(feed), **states, **feed}.items() if name in self.names}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        known = {name: _value_info(name, *self._described[name]) for name in names & self.names}
        model, fed, computed = _cut(self._model, known, wanted)
        runtime = self._open_piece(model)

        def run(values: Arrays) -> dict[str, Array]:
            found = runtime.run({name: values[name] for name in fed})
            return {name: found[output] for name, output in computed.items()}

        described = self._described
        return Pieces(
            tuple(fed),
            frozenset(computed),
            {name: described[name][0] for name in known},
            {name: _sizes(described[name][1]) for name in known},
            run,
        )


class _Watched(OnnxRuntime):
    """A model with many outputs: they are copied one after the other, and the memory of each is freed after its copy."""

    def run(self, inputs: Arrays) -> dict[str, Array]:
        from onnxruntime import OrtValue

        with describe_failures():
            packed = self.bytes.pack_inputs(inputs)
            given = {name: OrtValue.ortvalue_from_numpy(np.asarray(value, order="C")) for name, value in packed.items()}
            waiting = self.session.run_with_ort_values([self.bytes.name_in_copy(name) for name in self.outputs], given)[::-1]
            return {name: self.bytes.unpack_output(name, waiting.pop().numpy()) for name in self.outputs}


def watch(file: ModelFile, names: frozenset[str]) -> OnnxRuntime:
    """See plugins.Runtime. The file's own outputs are dropped, so that nothing is computed for them alone."""
    from onnx import ValueInfoProto, load, save

    from qconvert.formats.onnx.container import external_files

    model = load(str(file.path), load_external_data=False)
    wanted = sorted({*names} & _value_names(model) - {value.name for value in model.graph.input})
    if wanted:
        del model.graph.output[:]
        model.graph.output.extend(ValueInfoProto(name=name) for name in wanted)
    data_folder = file.path.parent if external_files(file.path) else None  # data are found by names relative to the file
    with temporary_folder(data_folder) as folder:
        copy = Path(folder).parent / f"{Path(folder).name}.onnx" if data_folder else Path(folder, "watched.onnx")
        try:
            save(model, str(copy))
            del model
            release_memory()
            # Between runs the values are looked at: threads that wait for work by spinning would take that time away.
            settings = {"session.intra_op.allow_spinning": "0"}
            return _Watched(copy, file.threads, optimize=file.kernels == "optimized", settings=settings, without=_BLOCKED)
        finally:
            copy.unlink(missing_ok=True)


def _sizes(shape: tuple[Any, ...]) -> tuple[int | None, ...] | None:
    """onnxruntime gives () for a scalar and for an unknown shape alike."""
    return tuple(size if isinstance(size, int) else None for size in shape) if shape else None


def load_whole_model(path: Path) -> Any:
    """Return the onnx.ModelProto of a file with its external data."""
    from qconvert.formats.onnx.container import external_files, load_proto

    if sum(item.stat().st_size for item in (path, *external_files(path))) >= 2**31:
        raise UnsupportedError(
            "is above 2 GB, too large to be split at its operators",
            file=str(path),
            remedy="Check it without --per-op.",
            rule="file-too-large",
        )
    model = load_proto(path)
    with_onnx_nodes(model)
    return model


def _value_names(model: Any) -> set[str]:
    """Return the names of all values that the main graph computes or takes as inputs."""
    computed = {name for node in model.graph.node for name in node.output if name}
    return (computed | {value.name for value in model.graph.input}) - {item.name for item in model.graph.initializer}


def _with_outputs(model: Any, names: set[str]) -> bytes:
    """The model with further outputs; onnxruntime finds their types."""
    from onnx import ValueInfoProto

    copy = type(model)()
    copy.CopyFrom(model)
    present = {value.name for value in (*model.graph.output, *model.graph.input)}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in sorted(names - present))
    return bytes(copy.SerializeToString())


def _value_info(name: str, dtype: str, shape: tuple[Any, ...]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape) if shape else None)


def _cut(model: Any, known: Mapping[str, Any], wanted: frozenset[str]) -> tuple[bytes, list[str], dict[str, str]]:
    """Return the model cut at the values of `known` (name -> ValueInfoProto), with the nodes that compute the `wanted` ones; its inputs;
    and the name of each value's output."""
    from onnx import helper

    islands = _extract_nodes(wanted, known, model)
    written = {name for node in islands.graph.node for name in node.output}
    read: set[str] = set()
    for node in islands.graph.node:
        read.update(name for name in _reads(node) if name in known)
        for position, name in enumerate(node.output):
            if name in known:
                node.output[position] = name + _COMPUTED
    fed = sorted(read)
    islands.graph.input.extend(known[name] for name in fed)
    computed = {name: name + _COMPUTED for name in sorted(known.keys() & written)}
    islands.graph.output.extend(
        helper.make_tensor_value_info(output, known[name].type.tensor_type.elem_type, None) for name, output in computed.items()
    )
    return islands.SerializeToString(), fed, computed


def _extract_nodes(wanted: frozenset[str], known: Mapping[str, Any], model: Any) -> Any:
    """Return a copy of the model with only the nodes that compute `wanted` from the `known` values, and their constants."""
    needed, kept = set(wanted), []
    for node in reversed(model.graph.node):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(name for name in _reads(node) if name not in known)
    copy = type(model)(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    copy.graph.name = model.graph.name
    copy.graph.node.extend(reversed(kept))
    copy.graph.initializer.extend(item for item in model.graph.initializer if item.name in needed)
    copy.graph.sparse_initializer.extend(item for item in model.graph.sparse_initializer if item.values.name in needed)
    copy.graph.quantization_annotation.extend(model.graph.quantization_annotation)
    return copy


def _reads(node: Any) -> Iterator[str]:
    """Yield the names that a node reads, those in its subgraphs included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def copy_without_operators(
    file: ModelFile, gone: frozenset[str], inputs: Sequence[tuple[Tensor, str]], outputs: Sequence[tuple[str, str]], copy: Path
) -> None:
    """See plugins.Runtime. The graph gives the types of removed operators' results if the file does not state them. States stay inputs and
    outputs of the copy."""
    from onnx import ValueInfoProto, helper

    model = load_whole_model(file.path)
    graph = model.graph
    stated = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    kept = [node for node in graph.node if gone.isdisjoint(node.output)]
    first = [helper.make_node("Identity", [name], [tensor.name]) for tensor, name in inputs if name != tensor.name]
    last = [helper.make_node("Identity", [name], [wanted]) for name, wanted in outputs if name != wanted]
    fed = [_rename_value(_make_value_info(tensor, stated.get(tensor.name)), name) for tensor, name in inputs]
    given = [_rename_value(stated.get(name) or ValueInfoProto(name=name), wanted) for name, wanted in outputs]
    text = next((entry.value for entry in model.metadata_props if entry.key == STATES), "")
    states = {item.output for item in parse_states(text)} if text else set()
    given += [value for value in graph.output if value.name in states.difference(value.name for value in given)]
    names = {value.name for value in (*graph.input, *fed, *given)}
    values = [value for value in graph.value_info if value.name not in names]
    for field, items in (("node", [*first, *kept, *last]), ("output", given), ("value_info", values)):
        del getattr(graph, field)[:]
        getattr(graph, field).extend(items)
    graph.input.extend(fed)
    copy.write_bytes(model.SerializeToString())


def _rename_value(value: Any, name: str) -> Any:
    found = type(value)()
    found.CopyFrom(value)
    found.name = name
    return found


def _make_value_info(tensor: Tensor, stated: Any) -> Any:
    from onnx import helper

    from qconvert.formats.onnx.initializers import ELEMENT_TYPES

    if stated is not None and stated.HasField("type"):
        return stated
    if tensor.dtype not in ELEMENT_TYPES:
        raise RuntimeRefusedError(
            f"the file does not state the type of {tensor.name!r}, which a custom operator computes", rule="unknown-type"
        )
    return helper.make_tensor_value_info(tensor.name, ELEMENT_TYPES[tensor.dtype], None if tensor.shape is None else list(tensor.shape))
