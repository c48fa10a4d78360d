"""Runs a .tflite model in LiteRT."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.files import map_file
from qconvert.graph import Array, Graph, Tensor
from qconvert.plugins import Layer, ModelFile, Pieces
from qconvert.runtimes.packages import runtime_package

__all__ = ["KERNELS", "LiteRT", "LiteRTInside", "around", "layers", "open_model", "taken_by", "watch"]

#: Names of LiteRT's kernel sets -> its OpResolverType: default is XNNPACK where it has a kernel, reference the plain C++ ones.
KERNELS = {"default": "AUTO", "reference": "BUILTIN_REF"}


class LiteRT:
    """A .tflite model loaded in LiteRT.

    Args:
        model: the file's content.
        kernels: a key of KERNELS.
        threads: number of threads.

    Attributes:
        inputs: name -> (dtype, shape), in order.
        outputs: likewise.
        note: what a user should know of how it runs; "" if there is nothing.
        form: which of its kernels run, in words.

    Raises:
        MissingPackageError: ai-edge-litert is not installed.
        RuntimeRefusedError: LiteRT does not take the model.
    """

    note = ""

    def __init__(self, model: bytes, kernels: str = "default", threads: int = 1) -> None:
        if kernels not in KERNELS:
            raise OptionError(f"there are no kernels {kernels!r}", remedy=f"Use one of {', '.join(KERNELS)}.")
        self._model, self._kernels, self._threads = bytes(model), kernels, threads
        self.form = "XNNPACK" if kernels == "default" else f"{kernels} kernels"
        self.reset()
        self.inputs, self.outputs = self._describe(self._given), self._describe(self._wanted)

    def reset(self) -> None:
        """The next run is the first of a sequence. Only a new interpreter gives resource variables their first values."""
        with _quiet():
            litert = runtime_package("ai_edge_litert.interpreter", "check", "runs .tflite models")
            try:
                self._interpreter = litert.Interpreter(
                    model_content=self._model,
                    experimental_op_resolver_type=getattr(litert.OpResolverType, KERNELS[self._kernels]),
                    num_threads=self._threads,
                )
                self._allocate()
                self._given, self._wanted = self._interpreter.get_input_details(), self._interpreter.get_output_details()
            except (ValueError, RuntimeError) as error:
                raise RuntimeRefusedError(f"LiteRT does not take the model: {error}") from error

    def _allocate(self) -> None:
        """Plans the tensors; where that fails with the sizes that stand for open ones, run() may still give sizes that fit."""
        try:
            self._interpreter.allocate_tensors()
        except RuntimeError:
            if all(size >= 0 for item in self._interpreter.get_input_details() for size in item["shape_signature"]):
                raise

    @staticmethod
    def _describe(details: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensors without a name are called as the reader calls them, by their place."""
        return {
            item["name"] or f"tensor_{item['index']}": _described(np.dtype(item["dtype"]).name, tuple(int(s) for s in item["shape"]))
            for item in details
        }

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs are stored values by name; returns stored outputs by name."""
        return dict(zip(self.outputs, self.run_in_order([inputs[name] for name in self.inputs]), strict=False))

    def begin(self, values: Mapping[str, Array]) -> None:
        """Makes these the values that operators keep of the run before, by the names of their variables."""
        places = {item["name"]: item for item in self._interpreter.get_tensor_details()}
        for name, value in values.items():
            self._interpreter.set_tensor(places[name]["index"], _own_type(value).reshape(places[name]["shape"]))

    def kept(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """What operators keep of the run before, by the names of their variables; those that the model has, in these shapes."""
        places = {item["name"]: item["index"] for item in self._interpreter.get_tensor_details() if item["name"] in shapes}
        return {name: np.array(self._interpreter.get_tensor(index)).reshape(shapes[name]) for name, index in places.items()}

    def run_in_order(self, inputs: list[Array]) -> list[Array]:
        """Runs once with inputs and outputs in the model's order; names need not be unique."""
        given = [(item, _own_type(_joined(item, value))) for item, value in zip(self._given, inputs, strict=True)]
        resized = [(item["index"], value.shape) for item, value in given if tuple(value.shape) != tuple(item["shape"])]
        try:
            for index, shape in resized:
                self._interpreter.resize_tensor_input(index, shape)
            if resized:
                self._interpreter.allocate_tensors()
                self._given = self._interpreter.get_input_details()
            for item, value in given:
                self._interpreter.set_tensor(item["index"], value)
            self._interpreter.invoke()
        except (ValueError, RuntimeError) as error:
            raise RuntimeRefusedError(f"LiteRT failed while running the model: {error}") from error
        return [self._read(item) for item in self._wanted]

    def _read(self, item: Any) -> Array:
        """The value of a tensor; LiteRT gives none for some without elements."""
        try:
            found: Array = self._interpreter.get_tensor(item["index"])
        except ValueError as error:
            item = next(now for now in self._interpreter.get_output_details() if now["index"] == item["index"])
            if 0 not in item["shape"]:
                raise RuntimeRefusedError(f"LiteRT does not give the tensor {item['name']!r}: {error}") from error
            found = np.zeros(item["shape"], item["dtype"])
        return _split(found)


def _described(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    return ("float32", (*shape, 2)) if dtype == "complex64" else (dtype, shape)


def _joined(item: Any, value: Array) -> Array:
    """Complex numbers of real and imaginary parts along a last axis, as a graph has them."""
    if np.dtype(item["dtype"]) != np.complex64 or value.dtype == np.complex64:
        return value
    return np.ascontiguousarray(value, np.float32).view(np.complex64)[..., 0]


def _split(value: Array) -> Array:
    """The parts of complex numbers along a last axis; other values as they are."""
    return np.ascontiguousarray(value)[..., None].view(np.float32) if value.dtype == np.complex64 else value


def _own_type(value: Array) -> Array:
    """The values in the type that numpy itself calls by its name: LiteRT knows of int64 only the one of the two C types that this is."""
    found = np.asarray(value, order="C")
    return found if found.dtype.kind in "OSU" else found.view(np.dtype(found.dtype.name))


@contextmanager
def _quiet() -> Iterator[None]:
    """LiteRT writes progress to the process's standard error, past Python; only its errors, which are raised, matter."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    saved = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


def open_model(file: ModelFile) -> LiteRT:
    """See plugins.Runtime; the kernels are keys of KERNELS."""
    return LiteRT(_accepted(file), file.kernels, file.threads)


def keeps(graph: Graph) -> frozenset[str]:
    """See plugins.Runtime."""
    from qconvert.formats.tflite.inner_states import inner_states

    return inner_states(graph)


def _content(file: ModelFile) -> bytes:
    """The file, with the entry point in front that was chosen."""
    from qconvert.formats.tflite.entries import entered

    return bytes(entered(map_file(file.path), str(file.options.get("signature", ""))))


def _accepted(file: ModelFile) -> bytes:
    """The file's content as LiteRT takes it."""
    from qconvert.formats.tflite.probe import accepted_copy

    return accepted_copy(_content(file))


def around(
    file: ModelFile, gone: frozenset[str], inputs: Sequence[tuple[Tensor, str]], outputs: Sequence[tuple[str, str]], copy: Path
) -> None:
    """See plugins.Runtime; what an operator computes that is gone has to have a shape in the file."""
    from qconvert.formats.tflite.probe import without_operators

    unknown = next((tensor.name for tensor, _ in inputs if tensor.shape is None), "")
    if unknown:
        raise RuntimeRefusedError(f"the file does not state the shape of {unknown!r}, which a custom operator computes")
    copy.write_bytes(without_operators(_content(file), gone, [(tensor.name, name) for tensor, name in inputs], outputs))


class LiteRTInside:
    """A .tflite file all of whose tensors are given out: with that, a tensor is what its operator computes by itself.

    Args:
        file: the file, with a key of KERNELS.
        graph: its names are those of the file; LiteRT gives all that the main subgraph computes.
    """

    cuts = False

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        from qconvert.formats.tflite.probe import with_outputs

        model, self._order = with_outputs(_accepted(file))
        self._probe = LiteRT(model, file.kernels)
        self.names = frozenset(self._order)
        reads = (op for op in graph.ops if op.kind == "ReadState" and str(op["state"]) in keeps(graph))
        self._kept = {op.outputs[0]: shape for op in reads if (shape := graph[op.outputs[0]].static_shape) is not None}

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        self._probe.reset()

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """All tensors by name, and what operators keep, as the run before left it."""
        kept = self._probe.kept(self._kept) if self._kept else {}  # a variable is given out too where a DEQUANTIZE makes its first value
        found = self._probe.run_in_order(list(feed.values()))
        return {**feed, **{name: np.asarray(value) for name, value in zip(self._order, found, strict=True)}, **kept}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        raise NotImplementedError("LiteRT does not cut files")


class _Watched(LiteRT):
    """A .tflite file that gives out these tensors, by their canonical names."""

    def __init__(self, file: ModelFile, names: frozenset[str]) -> None:
        from qconvert.formats.tflite.probe import with_outputs

        model, self._order = with_outputs(_accepted(file), names)
        super().__init__(model, file.kernels, file.threads)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = self.run_in_order([inputs[name] for name in self.inputs])
        return {name: np.asarray(value) for name, value in zip(self._order, found, strict=True)}


def watch(file: ModelFile, names: frozenset[str]) -> LiteRT:
    """See plugins.Runtime."""
    return _Watched(file, names)


#: Operators that compute in float whatever their data are stored as.
_FLOAT = {"FAKE_QUANT", "TFLite_Detection_PostProcess"}


def layers(file: ModelFile) -> tuple[Layer, ...]:
    """The operators of the main subgraph in order, with XNNPACK named where it runs them.

    The Python API lists the nodes after delegation, each delegated part being one further node DELEGATE; which operators are in it follows
    from its inputs and outputs. What XNNPACK fuses inside is not told. Kernels on integers compute in integers.
    """
    with _quiet():
        interpreter = LiteRT(_accepted(file), file.kernels)._interpreter
    nodes = interpreter._get_ops_details()
    names = {item["index"]: item["name"] for item in interpreter.get_tensor_details()}
    delegated = _delegated(nodes)
    return tuple(
        Layer(
            node["op_name"],
            tuple(names.get(int(index), "") for index in node["outputs"]),
            None if node["op_name"] == "DEQUANTIZE" else node["op_name"] not in _FLOAT and _on_integers(node),
            "XNNPACK" if node["index"] in delegated else "",
        )
        for node in nodes
        if node["op_name"] != "DELEGATE"
    )


def taken_by(file: ModelFile) -> dict[str, str]:
    """What XNNPACK leaves to TFLite's own kernels, which round as the reference kernels do.

    An operator that is written as several, the parts of y being called y/…, is named "y/": "mixed" if both have a part in it.
    """
    if file.kernels != "default":
        return {}
    found = layers(file)
    own = {name: layer.by != "XNNPACK" for layer in found for name in layer.outputs}
    parts: dict[str, set[bool]] = {}
    for name, left in own.items():
        whole = name.rpartition("/")[0]
        if whole in own:
            parts.setdefault(whole, {own[whole]}).add(left)
    joined = {f"{name}/": "mixed" if len(sides) > 1 else "reference" for name, sides in parts.items() if True in sides}
    return {**dict.fromkeys((name for name, left in own.items() if left), "reference"), **joined}


def _on_integers(node: Any) -> bool:
    """Whether the data and the result of a node are stored as integers."""
    types = [*node["operand_types"][:1], *node["result_types"][:1]]
    return bool(types) and all(np.dtype(item).kind in "iu" for item in types)


def _delegated(nodes: list[Any]) -> set[int]:
    """Indices of the nodes between the inputs and the outputs of a DELEGATE."""
    writers = {int(index): node for node in nodes if node["op_name"] != "DELEGATE" for index in node["outputs"]}
    found: set[int] = set()
    for part in (node for node in nodes if node["op_name"] == "DELEGATE"):
        given = {int(index) for index in part["inputs"]}
        waiting = [int(index) for index in part["outputs"]]
        while waiting:
            index = waiting.pop()
            if index in given or index not in writers or writers[index]["index"] in found:
                continue
            found.add(writers[index]["index"])
            waiting += [int(item) for item in writers[index]["inputs"]]
    return found
