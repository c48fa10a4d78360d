"""TensorRT builds an engine of an .onnx file, and runs it where a GPU is at hand.

Without one, the engine is still built, for the compute capability that the kernels name, and onnxruntime runs the file node by node: the
results are those of the file, not of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from qconvert.conversion import load
from qconvert.data.stated_sizes import Bounds
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError
from qconvert.graph import Array
from qconvert.plugins import Engine, Layer, ModelFile, Timing
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.runtimes.tensorrt_build import Build, Builder
from qconvert.runtimes.tensorrt_layers import MOVES, EngineLayer
from qconvert.runtimes.tensorrt_node_names import NamedModel, Node, named_model
from qconvert.targets.trtexec import bounds

__all__ = ["TensorRTModel", "build_engine", "open_model"]

#: Operators after a product that belong to it: a bound, a shift, the rounding.
_BEHIND = ("QuantizeLinear", "Relu", "Clip", "Cast", "Add", "Sub", "Max", "Min")
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "Cast")
#: Operators that return values of their data, or positions of these: they compute alike on integers and in float.
_CHOICES = (
    *MOVES, "ArgMax", "ArgMin", "Clip", "GatherElements", "GatherND", "GlobalMaxPool", "Max", "Min", "ReduceMax", "ReduceMin", "Relu",
    "Resize", "ReverseSequence", "ScatterElements", "ScatterND", "TopK", "Where",
)  # fmt: skip


class TensorRTModel:
    """An .onnx file built by TensorRT; see plugins.LoadedModel.

    Args:
        file: the file, with the compute capability as its kernels.

    Raises:
        MissingPackageError: TensorRT, or onnxruntime, is not installed.
        RuntimeRefusedError: TensorRT refuses the model, or its process ended.
    """

    def __init__(self, file: ModelFile) -> None:
        self._builder = Builder()
        model = named_model(file.path)
        found, sizes = _build_with_bounds(self._builder, model, file, run=True)
        self._simulated = OnnxRuntime(file.path, file.threads, optimize=False)
        self._not_run = _shorten_reason(found.not_run) if found.not_run else ""
        if self._not_run:
            self._builder.close()
        self.inputs, self.outputs = self._simulated.inputs, self._simulated.outputs
        ran = f"which was not run ({self._not_run}): everything ran" if self._not_run else "and ran it; single operators ran"
        self.note = f"{_describe_build(found)}{sizes}, {ran} in onnxruntime, node by node"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs and outputs are stored values by name."""
        if self._not_run:
            return self._simulated.run(inputs)
        found = self._builder.run(inputs)
        return {name: found[name] for name in self.outputs}

    def time_runs(self, inputs: Mapping[str, Array], times: int) -> Timing:
        """Runs so many times on the same stored values, copies to the GPU and back included.

        Raises:
            RuntimeRefusedError: the engine cannot run here; the time of what stands for it says nothing.
        """
        if self._not_run:
            raise RuntimeRefusedError(f"the engine was built and not run: {self._not_run}", rule="not-run")
        return Timing.of(partial(self._builder.run, inputs), times)


def _shorten_reason(reason: str) -> str:
    """Shorten the reason why an engine cannot run here; CUDA's text without a driver is long."""
    return "no GPU" if "CUDA driver version is insufficient" in reason or "no CUDA-capable device" in reason else reason[:200]


def open_model(file: ModelFile) -> TensorRTModel:
    """See plugins.Runtime; the kernels are compute capabilities, such as "sm89"."""
    return TensorRTModel(file)


def build_engine(file: ModelFile) -> Engine:
    """See plugins.Runtime."""
    model = named_model(file.path)
    builder = Builder()
    try:
        found, sizes = _build_with_bounds(builder, model, file)
    finally:
        builder.close()
    stated = f"{sizes} (--shape states others)" if sizes else ""
    notes = [f"{_describe_build(found)}{stated}; it was not run", *(f"TensorRT warns: {text}" for text in found.warnings[:4])]
    return Engine(tuple(_operators(found.layers, model)), tuple(notes))


def _describe_build(found: Build) -> str:
    capability = f" for compute capability {found.capability[2:-1]}.{found.capability[-1]}" if found.capability else ""
    return f"TensorRT ({found.package}) built the engine{capability}, {found.size / 1e6:.1f} MB in {found.seconds:.1f} s"


def _build_with_bounds(builder: Builder, model: NamedModel, file: ModelFile, *, run: bool = False) -> tuple[Build, str]:
    """Build the engine; return it, and in words the sizes chosen for dynamic dimensions. Raises RuntimeRefusedError."""
    stated = _check_bounds(model, file.bounds)
    left = [name for name, shape in model.inputs.items() if name not in stated and any(isinstance(size, str) for size in shape)]
    taken = _guess_bounds(model, file, left) if left else {}
    found = builder.build(model, file.kernels, {**stated, **taken}, run=run)
    if not found.built:
        error = found.to_error()
        error.file = str(file.path)
        raise error
    return found, f" with {', '.join(f'{name}:{_format_bounds(shapes)}' for name, shapes in taken.items())}" if taken else ""


def _format_bounds(shapes: Bounds) -> str:
    """Format bounds as --shape takes them."""
    return ",".join("x".join(map(str, shape)) for shape in (shapes if len(set(shapes)) > 1 else shapes[:1]))


def _check_bounds(model: NamedModel, given: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Return the bounds that a user states; raise OptionError if the model has no such input."""
    for name, (least, *_) in given.items():
        if name not in model.inputs:
            raise OptionError(
                f"sizes are stated for {name!r}, which is not an input", remedy=f"Inputs: {', '.join(model.inputs)}.", rule="unknown-input"
            )
        if len(least) != len(model.inputs[name]):
            raise OptionError(
                f"the input {name!r} has {len(model.inputs[name])} axes, but {len(least)} sizes are stated", rule="counts-differ"
            )
    return dict(given)


def _guess_bounds(model: NamedModel, file: ModelFile, names: list[str]) -> dict[str, Bounds]:
    """Return bounds of inputs with dynamic dimensions, as the file's operators demand them."""
    try:
        found = bounds(load(file.path, **file.options))
    except QConvertError:  # TensorRT may take what we do not read
        found = {}
    ones = {name: tuple(size if isinstance(size, int) else 1 for size in model.inputs[name]) for name in names}
    return {name: found.get(name, (shape, shape, shape)) for name, shape in ones.items()}


def _operators(layers: tuple[EngineLayer, ...], model: NamedModel) -> Iterator[Layer]:
    """Yield the nodes of the file with their layers; a node of several layers is in the one that sums its products, or the last."""
    within: dict[Node, EngineLayer] = {}
    for layer in layers:
        for node in layer.nodes:
            if node not in within or not within[node].sums:
                within[node] = layer
    names = _values_by_node(model)
    for node, layer in within.items():
        yield Layer(layer.type, tuple(names.get(node, ())), _is_integer_node(node, layer), operator=node.operator, within=layer.name)


def _is_integer_node(node: Node, layer: EngineLayer) -> bool | None:
    """Whether a node runs on integers, or 8-bit floats; None if it converts, or chooses among data in a kernel of other nodes."""
    if node.operator in _CONVERSIONS:
        return None
    sides = [*layer.inputs, *layer.constants[: max(0, 2 - len(layer.inputs))]]
    if layer.sums and node.operator in _PRODUCTS and all(side.dtype.startswith("FP8") for side in sides):
        return True
    if node.operator in _CHOICES and (layer.sums or not layer.integer):
        return None
    if layer.sums and node.operator not in _PRODUCTS:
        return False
    return layer.integer


def _values_by_node(model: NamedModel) -> dict[Node, list[str]]:
    """Return node -> the tensors with its values, after bounds, shifts and roundings."""
    writers = {name: node for node in model.nodes for name in node.outputs if name}
    found: dict[Node, list[str]] = {}
    for name, node in writers.items():
        found.setdefault(_origin(node, writers, model.constants), []).append(name)
    return found


def _origin(node: Node, writers: Mapping[str, Node], constants: frozenset[str]) -> Node:
    """Return the node of a value: a product before its own bounds, shifts and roundings, or the node before a rounding."""
    inner = node
    seen: set[Node] = set()
    while node.operator in _BEHIND and node not in seen:
        seen.add(node)
        data = [name for name in node.inputs if name and name not in constants]
        before = writers.get(data[0]) if len(data) == 1 else None
        if before is None or before.operator == "DequantizeLinear":
            break
        node = before
        inner = node if inner.operator == "QuantizeLinear" or node.operator in _PRODUCTS else inner
    return inner
