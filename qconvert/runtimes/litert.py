"""Runs a .tflite model in LiteRT, in a child process: LiteRT aborts, or reads beyond a tensor, where it should refuse (a scale that its
fixed-point arithmetic does not hold). litert_child.py is the other end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.files import map_file
from qconvert.graph import Array, Arrays, Graph, Tensor
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.plugins import Layer, ModelFile, Pieces, Timing
from qconvert.runtimes.packages import Child, runtime_package

#: Names of LiteRT's kernel sets -> its OpResolverType: default is XNNPACK where it has a kernel, reference the plain C++ ones.
KERNELS = {"default": "AUTO", "reference": "BUILTIN_REF"}
_CHILD = Path(__file__).with_name("litert_child.py")
#: Seconds for which an answer is waited for.
_PATIENCE = 600.0
_FAILED = "LiteRT failed while running the model"


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
        RuntimeRefusedError: LiteRT does not take the model, or its process ended.
    """

    note = ""

    def __init__(self, model: bytes, kernels: str = "default", threads: int = 1) -> None:
        if kernels not in KERNELS:
            raise OptionError(f"the kernels {kernels!r} are unknown", remedy=f"Use one of {', '.join(KERNELS)}.", rule="unknown-kernels")
        self.form = "XNNPACK" if kernels == "default" else f"{kernels} kernels"
        runtime_package("ai_edge_litert", "qconvert[check]", "runs .tflite models")
        self._settings = {"kernels": KERNELS[kernels], "threads": threads}
        self._child = Child(_CHILD, "LiteRT", _PATIENCE, forks=True)
        self._load(bytes(model))
        self.inputs, self.outputs = _types_by_name(self._given), _types_by_name(self._wanted)

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        self._load(b"")

    def _load(self, model: bytes) -> None:
        """Loads a file; without one, the same once more."""
        if model:
            self._child.begin_memory()
        found = self._request(
            {"load": len(model), "with": self._settings}, [np.frombuffer(model, np.uint8)], "LiteRT does not take the model"
        )
        self._given, self._wanted, self._tensors = ([_Described(*item) for item in found[key]] for key in ("inputs", "outputs", "tensors"))

    def _request(self, question: Mapping[str, Any], values: Sequence[Array] = (), failure: str = _FAILED) -> Mapping[str, Any]:
        answer = self._child.request(question, values)
        if "refused" in answer:
            raise RuntimeRefusedError(f"{failure}: {answer['refused']}", rule="model-refused")
        return answer

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Runs once. Inputs are stored values by name; returns stored outputs by name."""
        return dict(zip(self.outputs, self.run_in_order([inputs[name] for name in self.inputs]), strict=True))

    def begin(self, values: Arrays) -> None:
        """Set the variables of stateful operators, by name, for the next run."""
        places = {item.name: item for item in self._tensors}
        given = [(places[name].number, _encode_array(value).reshape(places[name].shape)) for name, value in values.items()]
        self._request({"begin": [(index, *_describe_array(value)) for index, value in given]}, [value for _, value in given])

    def read_variables(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Return the variables of stateful operators after the last run, by name, in the given shapes; unknown names are left out."""
        places = {item.name: item.number for item in self._tensors if item.name in shapes}
        found = self._child.arrays(self._request({"kept": list(places.values())})["values"])
        return {name: value.reshape(shapes[name]) for name, value in zip(places, found, strict=True)}

    def run_in_order(self, inputs: list[Array]) -> list[Array]:
        """Runs once with inputs and outputs in the model's order; names need not be unique."""
        given, described = self._encode_inputs(inputs)
        return [_split_complex(value) for value in self._child.arrays(self._request({"run": described}, given)["values"])]

    def time_runs(self, inputs: Arrays, times: int) -> Timing:
        """Runs so many times on the same stored values; the time of a run is that of LiteRT alone, without copies of inputs and outputs."""
        given, described = self._encode_inputs([inputs[name] for name in self.inputs])
        found = self._request({"time": described, "times": times}, given)
        return Timing(tuple(found["wall"]), tuple(found["processor"]), self._child.peak_memory())

    def _encode_inputs(self, inputs: Sequence[Array]) -> tuple[list[Array], list[tuple[Any, ...]]]:
        """Return the arrays to send for inputs in the model's order, and their descriptions."""
        given = [_encode_array(_join_complex(item, value)) for item, value in zip(self._given, inputs, strict=True)]
        return given, [(item.number, *_describe_array(value)) for item, value in zip(self._given, given, strict=True)]

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes after delegation, as Interpreter._get_ops_details() has them; types are letters of numpy's kinds."""
        return list(self._request({"nodes": True})["nodes"])

    def names(self) -> dict[int, str]:
        """Return the names of all tensors by number."""
        return {item.number: item.name for item in self._tensors}


class _Described(NamedTuple):
    """A tensor as LiteRT describes it."""

    number: int
    name: str
    dtype: str
    shape: list[int]


def _types_by_name(tensors: Sequence[_Described]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape by name. A tensor without a name, or with a name already in use, is called by its number, as in the reader; a
    tensor that is listed twice has its position appended the second time."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for place, item in enumerate(tensors):
        names = (item.name or f"tensor_{item.number}", f"tensor_{item.number}", f"tensor_{item.number}/{place}")
        name = next(name for name in names if name not in found)
        found[name] = ("float32", (*item.shape, 2)) if item.dtype == "complex64" else (item.dtype, tuple(item.shape))
    return found


def _join_complex(item: _Described, value: Array) -> Array:
    """Return complex numbers; a graph stores their real and imaginary parts along a last axis."""
    if item.dtype != "complex64" or value.dtype == np.complex64:
        return value
    return np.ascontiguousarray(value, np.float32).view(np.complex64)[..., 0]


def _split_complex(value: Array) -> Array:
    """Return the parts of complex numbers along a last axis; other values unchanged."""
    return np.ascontiguousarray(value)[..., None].view(np.float32) if value.dtype == np.complex64 else value


def _encode_array(value: Array) -> Array:
    """Return an array in C order; texts become UTF-8 bytes of the length of the longest."""
    found = np.asarray(value, order="C")
    if found.dtype.kind not in "OU":
        return found
    texts = [item if isinstance(item, bytes) else str(item).encode() for item in found.reshape(-1)]
    return np.array(texts, np.bytes_).reshape(found.shape)


def _describe_array(value: Array) -> tuple[str, tuple[int, ...]]:
    return value.dtype.str if value.dtype.kind == "S" else value.dtype.name, value.shape


def open_model(file: ModelFile) -> LiteRT:
    """See plugins.Runtime; the kernels are keys of KERNELS."""
    return LiteRT(_read_for_litert(file), file.kernels, file.threads)


def keeps(graph: Graph) -> frozenset[str]:
    """See plugins.Runtime."""
    from qconvert.formats.tflite.variables import inner_states

    return inner_states(graph)


def read_content(file: ModelFile) -> bytes:
    """Return the file's content; the chosen signature comes first."""
    from qconvert.formats.tflite.file_contents import select_signature

    return bytes(select_signature(map_file(file.path), str(file.options.get("signature", ""))))


def _read_for_litert(file: ModelFile) -> bytes:
    """Return the file's content in a form that LiteRT loads."""
    from qconvert.formats.tflite.probe import accepted_copy

    return accepted_copy(read_content(file))


def copy_without_operators(
    file: ModelFile, gone: frozenset[str], inputs: Sequence[tuple[Tensor, str]], outputs: Sequence[tuple[str, str]], copy: Path
) -> None:
    """See plugins.Runtime; the file has to state the shapes of the removed operators' results."""
    from qconvert.formats.tflite.probe import without_operators

    unknown = next((tensor.name for tensor, _ in inputs if tensor.shape is None), "")
    if unknown:
        raise RuntimeRefusedError(
            f"the file does not state the shape of {unknown!r}, which a custom operator computes", rule="unknown-shape"
        )
    copy.write_bytes(without_operators(read_content(file), gone, [(tensor.name, name) for tensor, name in inputs], outputs))


class LiteRTInside:
    """A .tflite file whose tensors are all outputs, so that no operator is fused with the next one.

    Args:
        file: the file, with a key of KERNELS.
        graph: whose activations are wanted; a name that the file does not have is ignored.
    """

    cuts = False

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        from qconvert.formats.tflite.probe import with_outputs

        # XNNPACK folds what is computed from constants, such as weights of float16 after a DEQUANTIZE, and gives out zeros for it.
        model, self._order = with_outputs(_read_for_litert(file), frozenset(graph.varying()))
        self._probe = LiteRT(model, file.kernels)
        self.names = frozenset(self._order)
        inner, reads = keeps(graph), states_by_reader(graph)
        self._kept = {name: shape for name, state in reads.items() if state in inner and (shape := graph[name].static_shape) is not None}

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        self._probe.reset()

    def values(self, feed: Arrays) -> dict[str, Array]:
        """Return all tensors by name, and the variables of stateful operators as the previous run left them."""
        kept = (
            self._probe.read_variables(self._kept) if self._kept else {}
        )  # a variable is given out too where a DEQUANTIZE makes its first value
        found = self._probe.run_in_order(list(feed.values()))
        return {**feed, **{name: np.asarray(value) for name, value in zip(self._order, found, strict=True)}, **kept}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        raise NotImplementedError("LiteRT does not cut files")


class _Watched(LiteRT):
    """A .tflite file with the given tensors as outputs, by their canonical names."""

    def __init__(self, file: ModelFile, names: frozenset[str]) -> None:
        from qconvert.formats.tflite.probe import with_outputs

        model, self._order = with_outputs(_read_for_litert(file), names)
        super().__init__(model, file.kernels, file.threads)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        found = self.run_in_order([inputs[name] for name in self.inputs])
        return {name: np.asarray(value) for name, value in zip(self._order, found, strict=True)}


def watch(file: ModelFile, names: frozenset[str]) -> LiteRT:
    """See plugins.Runtime."""
    return _Watched(file, names)


#: Operators that compute in float whatever their data are stored as.
_FLOAT = {"FAKE_QUANT", "TFLite_Detection_PostProcess"}


def layers(file: ModelFile) -> tuple[Layer, ...]:
    """Return the operators of the main subgraph in order, with XNNPACK named where it runs them.

    The Python API lists the nodes after delegation: each delegated part is one more node DELEGATE, and its inputs and outputs tell its
    operators. Fusions inside XNNPACK are not listed. Kernels on integers compute in integers.
    """
    model = LiteRT(_read_for_litert(file), file.kernels)
    nodes, names = model.nodes(), model.names()
    delegated = _find_delegated(nodes)
    return tuple(
        Layer(
            node["op_name"],
            tuple(names.get(int(index), "") for index in node["outputs"]),
            None if node["op_name"] == "DEQUANTIZE" else node["op_name"] not in _FLOAT and _is_integer_node(node),
            "XNNPACK" if node["index"] in delegated else "",
        )
        for node in nodes
        if node["op_name"] != "DELEGATE"
    )


def taken_by(file: ModelFile) -> dict[str, str]:
    """Return the operators that XNNPACK leaves to TFLite's own optimized kernels.

    An operator y that the file has as several, called y/…, is listed as "y/": "mixed" if both run a part of it.
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
    joined = {f"{name}/": "mixed" if len(sides) > 1 else "optimized" for name, sides in parts.items() if True in sides}
    return {**dict.fromkeys((name for name, left in own.items() if left), "optimized"), **joined}


def _is_integer_node(node: Any) -> bool:
    """Whether data and result of a node are stored as integers."""
    types = [*node["operand_types"][:1], *node["result_types"][:1]]
    return bool(types) and all(kind in "iu" for kind in types)


def _find_delegated(nodes: list[Any]) -> set[int]:
    """Return the indices of the nodes between the inputs and the outputs of each DELEGATE."""
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
