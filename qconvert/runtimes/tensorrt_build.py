"""Engines of .onnx files, which TensorRT parses and builds in a child process.

TensorRT-RTX builds for a compute capability without any device. tensorrt_child.py is the other end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.data.stated_sizes import Bounds
from qconvert.errors import MissingPackageError, RuntimeRefusedError
from qconvert.graph import Array
from qconvert.runtimes.child import Child
from qconvert.runtimes.tensorrt_child import PACKAGES
from qconvert.runtimes.tensorrt_layers import EngineLayer, layers_inspected, layers_listed
from qconvert.runtimes.tensorrt_node_names import NamedModel, named_model

__all__ = ["CAPABILITIES", "Build", "Builder", "Refusal"]

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

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
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
