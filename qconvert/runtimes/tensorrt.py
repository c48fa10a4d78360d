"""TensorRT builds an engine of an .onnx file, in a child process (tensorrt_child.py is its other end), and runs it where a GPU is at hand.
TensorRT-RTX builds for a compute capability without any device: then onnxruntime runs the file node by node, and the results are those
of the file, not of the engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conversion import load
from qconvert.data.input_limits import Bounds
from qconvert.errors import MissingPackageError, OptionError, QConvertError, RuntimeRefusedError
from qconvert.graph import Array, Arrays
from qconvert.operators import KINDS
from qconvert.plugins import Engine, Layer, ModelFile, Timing
from qconvert.runtimes.onnx_layers import KEEP
from qconvert.runtimes.onnx_rewrites import PRODUCTS
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.runtimes.packages import Child
from qconvert.runtimes.tensorrt_child import PACKAGES
from qconvert.runtimes.tensorrt_layers import EngineLayer, NamedModel, Node, layers_inspected, layers_listed, named_model
from qconvert.targets.tensorrt import bounds

#: Compute capabilities that TensorRT-RTX builds for, the default first.
CAPABILITIES = ("sm89", "sm75", "sm80", "sm86", "sm120", "sm121")
_CHILD = Path(__file__).with_name("tensorrt_child.py")
#: Seconds for which an engine is waited for.
_PATIENCE = 900.0
_TITLE = "TensorRT"
#: In lines of errors that say of this machine, not of the model, that it has no GPU.
_NO_DEVICE = "catchCudaError"
_INSTALL = "Install it with: pip install 'qconvert[tensorrt]'"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the parser or the builder.

    Attributes:
        text: TensorRT's.
        operator: the type of the node concerned; "" if none is named.
        node: its name.
    """

    text: str
    operator: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Build:
    """The result of a build.

    Attributes:
        package: what parsed and built it, with its version.
        capability: the compute capability that it was built for; "" for that of the device at hand.
        parsed, built: how far it came.
        errors: of the parser, or of the builder.
        warnings: of both.
        layers: those of the engine.
        size: of the engine, in bytes.
        seconds: that it took.
        not_run: why the engine cannot run here; "" if it can, or nobody asked.
    """

    package: str
    capability: str
    parsed: bool
    built: bool
    errors: tuple[Refusal, ...]
    warnings: tuple[str, ...]
    layers: tuple[EngineLayer, ...]
    size: int
    seconds: float
    not_run: str = ""

    def to_error(self) -> RuntimeRefusedError:
        """Return the error for a model without an engine: TensorRT's text, with the node."""
        who = f"{_TITLE}'s {'builder' if self.parsed else 'parser'} ({self.package})"
        if not self.errors:
            return RuntimeRefusedError(f"{who} built no engine and gave no reason", rule="model-refused")
        first = self.errors[0]
        where = f"{first.operator} {first.node!r}" if first.operator else ""
        more = "".join(f" | {text}" for text in list(dict.fromkeys(item.text for item in self.errors))[1:4])
        return RuntimeRefusedError(f"{who} refuses the model: {first.text}{more}", where=where, rule="model-refused")


class Builder:
    """A process in which TensorRT parses files and builds engines, one after the other. If it crashes, its last output says why.

    A failed build leaves its compute capability to the next build in the process (1.7.1), so another process is started.

    Raises:
        MissingPackageError: no package of TensorRT is installed.
    """

    def __init__(self) -> None:
        if not any(find_spec(name) is not None for name in PACKAGES):
            raise MissingPackageError(
                "TensorRT, which builds engines of .onnx models, is not installed", remedy=_INSTALL, rule="package-missing"
            )
        self._child = _start_child()

    def close(self) -> None:
        self._child.close()

    def build(
        self,
        file: Path | bytes | NamedModel,
        capability: str = CAPABILITIES[0],
        bounds: Mapping[str, Bounds] | None = None,
        *,
        run: bool = False,
    ) -> Build:
        """Parses a model, and builds an engine if that succeeds.

        Args:
            file: the model, or its content.
            capability: one of CAPABILITIES. TensorRT itself, which builds for the device at hand alone, ignores it.
            bounds: of inputs whose sizes are open.
            run: whether the engine is also loaded onto a device, if there is one, for run().

        Raises:
            RuntimeRefusedError: the process ended.
            MissingPackageError: the packages that are installed cannot be imported here.
        """
        model = file if isinstance(file, NamedModel) else named_model(file)
        question = {
            "size": len(model.content), "path": os.path.realpath(model.file) if model.file else "",
            "capability": capability.upper(), "bounds": dict(bounds or {}), "run": run,
        }  # fmt: skip
        try:
            found = self._child.request({"build": question}, [np.frombuffer(model.content, np.uint8)])
        except RuntimeRefusedError as error:
            error.reason = model.restore_names(error.reason)
            error.file = model.file
            raise
        if "missing" in found:
            raise MissingPackageError(
                f"TensorRT cannot be imported: {str(found['missing'])[:300]}", remedy=_INSTALL, rule="package-missing"
            )
        done = _build(found, model)
        if done.parsed and not done.built:
            self._child.close()
            self._child = _start_child()
        return done

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Run the engine that was built last."""
        values = [np.ascontiguousarray(value).reshape(np.shape(value)) for value in inputs.values()]
        described = [[name, list(value.shape)] for name, value in zip(inputs, values, strict=True)]
        found = self._child.request({"run": described, "sizes": [value.nbytes for value in values]}, values)
        return dict(zip(map(str, found.get("names", ())), self._child.arrays(found.get("values")), strict=False))


def _start_child() -> Child:
    return Child(_CHILD, _TITLE, _PATIENCE, (str(_memory()),))


def _memory() -> int:
    """Return the machine's memory in bytes, the limit of the process; 0 if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def _build(found: Mapping[str, Any], model: NamedModel) -> Build:
    messages = [(int(severity), model.restore_names(str(text)).strip(), str(text)) for severity, text in found["log"]]
    parsed, size = bool(found["parsed"]), int(found["size"])
    errors = [_refusal(item, model) for item in found["errors"]]
    if parsed and not size:
        errors = [_builder_refusal(text, raw, model) for severity, text, raw in messages if severity < 2]
    layers = layers_listed(str(found["layers"]), model) or layers_inspected(str(found.get("inspected", "")), model)
    return Build(
        f"{found['package']} {found['version']}", str(found.get("capability", "")), parsed, size > 0, tuple(errors),
        tuple(dict.fromkeys(text for severity, text, _ in messages if severity == 2)), layers, size, float(found["seconds"]),
        str(found.get("device", "")),
    )  # fmt: skip


def _refusal(item: Sequence[str], model: NamedModel) -> Refusal:
    text, operator, node = item
    lines = [line.strip() for line in model.restore_names(text).splitlines()]
    return Refusal(" ".join(line for line in lines if line and _NO_DEVICE not in line), operator, model.restore_names(node))


def _builder_refusal(text: str, raw: str, model: NamedModel) -> Refusal:
    node = next(iter(model.nodes_in(raw)), None)
    return Refusal(text, node.operator, node.name) if node else Refusal(text)


#: Operators after a product that belong to it: a bound, a shift, the rounding.
_AFTER = {"QuantizeLinear"}.union(name for name, kind in KINDS.items() if kind.clips or kind.casts or kind.sum_sign or kind.picks)
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "Cast")
#: Operators that return values of their data, or positions of these: they compute alike on integers and in float.
_CHOICES = KEEP.union(name for name, kind in KINDS.items() if kind.ranks)


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

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Runs once. Inputs and outputs are stored values by name."""
        if self._not_run:
            return self._simulated.run(inputs)
        found = self._builder.run(inputs)
        return {name: found[name] for name in self.outputs}

    def time_runs(self, inputs: Arrays, times: int) -> Timing:
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
    if layer.sums and node.operator in PRODUCTS and all(side.dtype.startswith("FP8") for side in sides):
        return True
    if node.operator in _CHOICES and (layer.sums or not layer.integer):
        return None
    if layer.sums and node.operator not in PRODUCTS:
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
    while node.operator in _AFTER and node not in seen:
        seen.add(node)
        data = [name for name in node.inputs if name and name not in constants]
        before = writers.get(data[0]) if len(data) == 1 else None
        if before is None or before.operator == "DequantizeLinear":
            break
        node = before
        inner = node if inner.operator == "QuantizeLinear" or node.operator in PRODUCTS else inner
    return inner
