"""audit(): which operators of a model a target will run as integers, and whether the target's runtime then does."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qconvert.checking.checked_file import model_file
from qconvert.conversion import load, normalize, save
from qconvert.errors import OptionError
from qconvert.graph import Graph
from qconvert.graph.kinds import KINDS
from qconvert.plugins import Layer, Runtime, Target, format_named, runtime_of, runtimes, target_named, targets
from qconvert.targets.audit import AuditLine
from qconvert.targets.audit import audit as predicted
from qconvert.targets.violations import refuse_violations

__all__ = ["AuditReport", "AuditedOperator", "audit"]


@dataclass(frozen=True, slots=True)
class AuditedOperator:
    """One operator with a quantized side.

    Attributes:
        operator: as the source names it.
        kind: of the canonical operator.
        output: the tensor that it computes; "" if it writes a state.
        integer: whether it is predicted to run as integers.
        reason: why.
        ran: whether it did; None if the runtime does not tell, or was not asked.
        layer: what ran it, by the runtime's name.
    """

    operator: str
    kind: str
    output: str
    integer: bool
    reason: str
    ran: bool | None = None
    layer: str = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a model for a target.

    Attributes:
        source: the file.
        target: the target's name.
        lines: the prediction, counted by kind and reason.
        operators: the prediction for each operator, and what ran.
        runtime: what ran the converted model; "" if none did.
        notes: what the reader should know of that.
        unjudged: why nobody can tell here whether it runs as predicted; "" if somebody can, or nobody was asked.
    """

    source: str
    target: str
    lines: tuple[AuditLine, ...]
    operators: tuple[AuditedOperator, ...]
    runtime: str = ""
    notes: tuple[str, ...] = ()
    unjudged: str = ""

    @property
    def otherwise(self) -> tuple[AuditedOperator, ...]:
        """The operators that ran otherwise than predicted."""
        return tuple(op for op in self.operators if op.ran is not None and op.ran != op.integer)


def audit(model: str | Path, target: str, *, run: bool = False, kernels: str | Sequence[str] = (), **options: Any) -> AuditReport:
    """Predicts which operators of a model a target runs as integers; nothing is written.

    Args:
        model: a model file.
        target: the name of a target whose kernels are known.
        run: whether the model is also converted, in a temporary folder, and the target's runtime asked what it makes of it.
        kernels: what runs it then, as in check().
        options: of the model's reader, such as input_shape.

    Raises:
        QConvertError: the model cannot be read, the target does not take it or its kernels are not known, or nothing runs its files.
    """
    path, chosen = Path(model), target_named(target)
    if not chosen.knows_kernels:
        known = ", ".join(item.name for item in targets().values() if item.knows_kernels)
        raise OptionError(f"the kernels of the target {target} are not known", remedy=f"Targets with an audit: {known}.")
    graph, _ = normalize(load(path, **options), chosen)
    refuse_violations(graph, chosen)
    operators, runtime = _predictions(graph, chosen), ""
    notes: tuple[str, ...] = ()
    unjudged = ""
    if run:
        found, name = runtime_of(chosen.format, kernels or (chosen.name if chosen.name in runtimes() else ()))
        layers, runtime = _layers(graph, chosen, found, name), found.title
        operators = operators if layers is None else tuple(_as_run(op, layers) for op in operators)
        notes = tuple(_notes(operators, found, layers))
        unjudged = f"{runtime} does not tell what it runs" if layers is None else _elsewhere(chosen)
    return AuditReport(str(path), chosen.name, predicted(graph, chosen), operators, runtime, notes, unjudged)


def _elsewhere(target: Target) -> str:
    """Why this machine cannot tell how a target runs; "" if it can."""
    machine = platform.machine().lower()
    family = "x86" if machine in ("x86_64", "amd64", "i386", "i686") else "arm" if machine.startswith(("arm", "aarch64")) else machine
    if not target.cpu or family == target.cpu:
        return ""
    return f"the target {target.name} is for {target.cpu} CPUs, and this machine's is {machine or 'unknown'}"


def _predictions(graph: Graph, target: Target) -> tuple[AuditedOperator, ...]:
    """The verdict on each operator with a quantized side."""
    found = []
    for op in graph.ops:
        for line in predicted(replace(graph, ops=(op,)), target):
            found.append(AuditedOperator(op.source or op.kind, op.kind, next(iter(op.outputs), ""), line.integer, line.reason))
    return tuple(found)


def _layers(graph: Graph, target: Target, runtime: Runtime, kernels: str) -> dict[str, Layer] | None:
    """What computes each tensor of the written model, by the tensor's name; None if the runtime does not tell."""
    if runtime.layers is None:
        return None
    with tempfile.TemporaryDirectory(prefix="qconvert-") as folder:
        path = Path(folder, f"model{format_named(target.format).suffixes[0]}")
        save(graph, path, target.format)
        file = model_file(path, format_named(target.format), kernels)
        return {name: layer for layer in runtime.layers(file) for name in layer.outputs}


def _as_run(op: AuditedOperator, layers: dict[str, Layer]) -> AuditedOperator:
    """The operator with what ran it; what converts between real and stored values is on neither side.

    A real operator whose result comes out of a conversion ran on real values; one that moves data was moved before the conversion.
    """
    layer, rule = layers.get(op.output), KINDS[op.kind].rule
    if layer is None or rule == "convert" or (layer.integer is None and rule in ("move", "relabel")):
        return op
    return replace(op, ran=bool(layer.integer), layer=f"{layer.kind} ({layer.by})" if layer.by else layer.kind)


def _notes(operators: tuple[AuditedOperator, ...], runtime: Runtime, layers: dict[str, Layer] | None) -> list[str]:
    if layers is None:
        return []
    gone = sum(op.ran is None and KINDS[op.kind].rule != "convert" for op in operators)
    notes = [f"{runtime.title} was asked on this machine, whose CPU is {platform.machine() or 'unknown'}"]
    return [*notes, f"{gone} operators are not seen in what it runs: fused with others, or left away"] if gone else notes
