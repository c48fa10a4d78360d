"""audit(): which operators of a model a target will run as integers, and whether the target's runtime then does; and audit_all(): what each
target would run, side by side.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.checking.file_in_runtime import model_file
from qconvert.conversion import load, normalize, save
from qconvert.conversion.in_memory import Model, model_title
from qconvert.data.input_limits import Bounds, stated_bounds
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError, format_count, format_some
from qconvert.files.system import temporary_folder
from qconvert.graph import Graph, Op
from qconvert.operators import KINDS, kind_of
from qconvert.operators.shapes_and_functions import closed_graphs
from qconvert.plugins import Engine, Layer, Runtime, Target, format_named, runtime_of, runtimes, runtimes_of_target, target_named, targets
from qconvert.plugins.options import ReadOptions
from qconvert.tables import Rows, Shown, format_sentence, format_text
from qconvert.targets.audit import NOT_QUANTIZED, AuditLine, audit_operators, audited_counts, refuse_violations, runs_on
from qconvert.targets.audit import audit as predicted


@dataclass(frozen=True, slots=True)
class AuditedOperator:
    """One operator with a quantized side.

    Attributes:
        operator: as the source names it.
        kind: of the canonical operator.
        output: the tensor that it computes; "" if it writes a state.
        integer: whether it is predicted to run as integers; of a target with an accelerator, whether that runs it.
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
class AuditedLayer:
    """One layer of an engine that was built.

    Attributes:
        name: the builder's.
        type: likewise.
        operators: types of the operators of the written file that it computes.
        integer: whether it runs on integers; None for conversions and data movement alone.
        reasons: why operators of it are predicted to run in float.
        otherwise: whether an operator of it runs otherwise than predicted.
    """

    name: str
    type: str
    operators: tuple[str, ...]
    integer: bool | None
    reasons: tuple[str, ...] = ()
    otherwise: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class AuditReport(Shown):
    """The audit of a model for a target.

    Attributes:
        source: the file.
        target: the target's name.
        lines: the prediction, counted by kind and reason.
        operators: the prediction for each operator, and what ran.
        runtime: what ran the converted model; "" if none did.
        notes: what the reader should know of that.
        unjudged: why nobody can tell here whether it runs as predicted; "" if somebody can, or nobody was asked.
        layers: of the engine that was built; none where the runtime builds none.
        accelerator: the target's, which is predicted to run the operators whose `integer` is true; "" if it has none.
    """

    source: str
    target: str
    lines: tuple[AuditLine, ...]
    operators: tuple[AuditedOperator, ...]
    runtime: str = ""
    notes: tuple[str, ...] = ()
    unjudged: str = ""
    layers: tuple[AuditedLayer, ...] = ()
    accelerator: str = ""

    @property
    def otherwise(self) -> tuple[AuditedOperator, ...]:
        """The operators that ran otherwise than predicted."""
        return tuple(op for op in self.operators if op.ran is not None and op.ran != op.integer)

    @property
    def sentence(self) -> str:
        """How many operators are predicted to run as integers, and how many ran otherwise."""
        words = f"{format_text(Path(self.source).name)} for {format_text(self.target)}: {audited_counts(self.lines)}"
        seen = sum(op.ran is not None for op in self.operators)
        verb = "places" if self.accelerator else "ran"
        ran = f"; {format_text(self.runtime)} {verb} {seen - len(self.otherwise)} of {seen} as predicted" if seen else ""
        return f"{words}{ran}." + (f" Inconclusive: {format_sentence(self.unjudged)}." if self.unjudged else "")

    def runs_on(self, integer: bool | None) -> str:
        """In a word, what an operator runs on; "" where that is not known."""
        return "" if integer is None else runs_on(integer, self.accelerator)

    def tables(self) -> tuple[Rows, ...]:
        """The prediction by kind and reason, what ran otherwise, and the layers of an engine."""
        lines = [(line.kind, str(line.count), line.runs_on, format_sentence(line.reason)) for line in self.lines]
        marks = tuple("" if line.integer else "approximate" for line in self.lines)
        title = "What runs where" if self.accelerator else f"What runs as integers on {format_text(self.target)}"
        others = [
            (
                format_text(op.operator),
                format_text(op.output),
                self.runs_on(op.integer),
                self.runs_on(op.ran),
                format_text(op.layer),
                format_sentence(op.reason),
            )
            for op in self.otherwise
        ]
        layers = [
            (
                format_text(layer.name),
                layer.type,
                " ".join(layer.operators),
                self.runs_on(layer.integer),
                format_sentence("; ".join(layer.reasons)),
            )
            for layer in self.layers
        ]
        return (
            Rows(title, ("operator", ">how many", "runs on", "why"), tuple(lines), marks),
            Rows("What did not run as predicted", ("operator", "output", "predicted", "ran on", "layer", "why"), tuple(others)),
            Rows("Layers of the engine", ("layer", "kind", "operators", "runs on", "why"), tuple(layers), folded=len(layers) > 60),
            Rows("Notes", ("in words",), tuple((format_sentence(text),) for text in self.notes)),
        )


@with_checked_arguments
def audit(
    model: Model,
    target: str,
    *,
    format: str = "",
    run: bool = False,
    build: bool = False,
    kernels: str | Sequence[str] = (),
    shapes: str | Sequence[str] = (),
    **options: Unpack[ReadOptions],
) -> AuditReport:
    """Predicts which operators of a model a target runs as integers; nothing is written.

    Args:
        model: a model file, its content as bytes, or a graph.
        format: the name of its format, if suffix and content do not determine it.
        target: the name of a target whose kernels are known.
        run: whether to convert the model too, in a temporary folder, and to compare with what the target's runtime runs.
        build: whether to convert it and build an engine, for a device that need not be present.
        kernels: what runs it then, as in check(), or what it is built for, such as "tensorrt:sm89".
        shapes: the shapes that an engine is built for if inputs have dynamic dimensions: "x:1x3x224x224", or min, opt and max,
            "x:1x3x64x64,1x3x224x224,1x3x512x512".
        options: of the model's reader, such as input_shape.

    Raises:
        QConvertError: the model cannot be read, the target does not take it or its kernels are not known, or nothing runs its files.
        RuntimeRefusedError: the builder makes no engine of it.
    """
    chosen = target_named(target)
    if not chosen.knows_kernels:
        known = ", ".join(item.name for item in targets().values() if item.knows_kernels)
        raise OptionError(
            f"the target is {target}, whose kernels are not known", remedy=f"Targets with an audit: {known}.", rule="target-without-kernels"
        )
    bounds = stated_bounds([shapes] if isinstance(shapes, str) and shapes else shapes)
    runtime = _choose_runtime(chosen, kernels, build=build) if run or build else None
    graph, _ = normalize(load(model, format, **options), chosen)
    judge = chosen if runtime is None else chosen.on(runtime[1])
    refuse_violations(graph, judge)
    accelerator = judge.accelerator.name if judge.accelerator is not None else ""
    report = AuditReport(model_title(model), judge.name, predicted(graph, judge), _predict_operators(graph, judge), accelerator=accelerator)
    if runtime is None:
        return report
    try:
        return _add_engine(report, graph, judge, runtime, bounds)
    except RuntimeRefusedError as error:
        error.file = model_title(model)  # what was written of it is gone when this is read
        error.remedy = error.remedy or f"`qconvert convert` with --target {chosen.name} writes the file that was refused."
        raise


def _choose_runtime(target: Target, kernels: str | Sequence[str], *, build: bool) -> tuple[Runtime, str]:
    """What tells how a target's files run, and its kernels: by default the runtime that is called as the target, or as its family."""
    found, chosen = runtime_of(target.format, kernels or runtimes_of_target(target)[:1])
    if build and found.build is None:
        builders = ", ".join(item.name for item in runtimes().values() if item.build is not None)
        raise OptionError(
            f"{found.title} builds no engines",
            remedy=f"Runtimes that build engines: {builders}. To run the model: --run.",
            rule="no-engines",
        )
    return found, chosen


def _add_engine(
    report: AuditReport, graph: Graph, target: Target, chosen: tuple[Runtime, str], bounds: Mapping[str, Bounds]
) -> AuditReport:
    """The report with what the runtime makes of the written model."""
    runtime, kernels = chosen
    engine = _build_engine(graph, target, runtime, kernels, bounds)
    if engine is None:
        return replace(report, runtime=runtime.title, unjudged=f"{runtime.title} does not report what it runs")
    by_tensor = {name: layer for layer in engine.layers for name in layer.outputs}
    operators = tuple(_match_layer(op, by_tensor, converts=bool(report.accelerator)) for op in report.operators)
    machine = f"{runtime.title} ran on this machine, whose CPU is {platform.machine() or 'unknown'}"
    notes = (*(engine.notes or [machine]), *_note_unseen_operators(operators))
    layers = _group_layers(engine.layers, operators, _find_float_reasons(graph, target))
    return replace(
        report,
        operators=operators,
        runtime=runtime.title,
        notes=notes,
        layers=layers,
        unjudged="" if layers else _explain_other_cpu(target),
    )


def _explain_other_cpu(target: Target) -> str:
    """Why this machine cannot tell how a target runs; "" if it can."""
    machine = platform.machine().lower()
    family = "x86" if machine in ("x86_64", "amd64", "i386", "i686") else "arm" if machine.startswith(("arm", "aarch64")) else machine
    if not target.cpu or family == target.cpu:
        return ""
    return f"the target {target.name} is for {target.cpu} CPUs, and this machine's is {machine or 'unknown'}"


def _predict_operators(graph: Graph, target: Target) -> tuple[AuditedOperator, ...]:
    """The verdict on each operator with a quantized side."""
    return tuple(
        AuditedOperator(op.label, op.kind, next(iter(op.outputs), ""), verdict.runs == "integers", verdict.rule)
        for op, verdict in audit_operators(graph, target)
    )


def _build_engine(graph: Graph, target: Target, runtime: Runtime, kernels: str, bounds: Mapping[str, Bounds]) -> Engine | None:
    """What computes the tensors of the written model; None if the runtime does not tell."""
    if runtime.layers is None and runtime.build is None:
        return None
    with temporary_folder() as folder:
        path = Path(folder, f"model{format_named(target.format).suffix_for(target.write_options)}")
        save(graph, path, target.format, **target.write_options)
        file = replace(model_file(path, format_named(target.format), kernels), bounds=bounds)
        if runtime.layers is not None:
            return Engine(runtime.layers(file))
        assert runtime.build is not None
        return runtime.build(file)


def _match_layer(op: AuditedOperator, layers: dict[str, Layer], *, converts: bool) -> AuditedOperator:
    """The operator with what ran it; what converts between real and stored values is on neither side, unless `converts`.

    A float operator whose result comes out of a conversion ran in float; data movement ran before the conversion. In a layer of an engine,
    a choice or conversion of data runs with the other operators. Movement of a stored result says nothing of how it was computed.
    """
    layer, rule = layers.get(op.output), KINDS[op.kind].rule
    if layer is not None and layer.integer and op.integer is False and layer.type in KINDS and KINDS[layer.type].rule == "move":
        return op
    if layer is None or (rule == "convert" and not converts) or (layer.integer is None and (rule in ("move", "relabel") or layer.within)):
        return op
    return replace(op, ran=bool(layer.integer), layer=f"{layer.type} ({layer.by})" if layer.by else layer.type)


def _note_unseen_operators(operators: tuple[AuditedOperator, ...]) -> list[str]:
    gone = sum(op.ran is None and KINDS[op.kind].rule != "convert" for op in operators)
    return [f"{format_count(gone, 'operator', 'are')} not in what it runs: they are fused with others or removed"] if gone else []


def _find_float_reasons(graph: Graph, target: Target) -> dict[str, str]:
    """Tensor -> why the operator that computes it is predicted to run in float, those without a quantized side too."""
    verdicts = ((op, verdict) for op, verdict in target.verdicts(graph, final=False) if kind_of(op).rule != "convert")
    return {name: verdict.rule for op, verdict in verdicts if verdict.runs != "integers" for name in op.outputs if name}


def _group_layers(
    layers: Sequence[Layer], operators: tuple[AuditedOperator, ...], on_floats: Mapping[str, str]
) -> tuple[AuditedLayer, ...]:
    """The layers of an engine, with what was predicted of their operators."""
    by_output = {op.output: op for op in operators}
    parts: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.within:
            parts.setdefault(layer.within, []).append(layer)
    found = []
    for name, inner in parts.items():
        tensors = [tensor for layer in inner for tensor in layer.outputs]
        audited = [by_output[tensor] for tensor in tensors if tensor in by_output]
        known = [layer.integer for layer in inner if layer.integer is not None]
        reasons = tuple(dict.fromkeys(on_floats[tensor] for tensor in tensors if tensor in on_floats))
        otherwise = any(op.ran is not None and op.ran != op.integer for op in audited)
        types = tuple(layer.operator for layer in inner)
        found.append(AuditedLayer(name, inner[0].type, types, any(known) if known else None, reasons, otherwise))
    return tuple(found)


#: Reasons in the table; an audit for the one target has the others.
_NAMED = 2


@dataclass(frozen=True, slots=True)
class TargetAudit:
    """What a target would run.

    Attributes:
        target: its name.
        format: the format of its files.
        integers: how many operators of the model are predicted to run wholly on integers.
        total: of how many. Operators that only convert between float and stored integers do not count, nor those that became part of
            others.
        reasons: why the others run in float, with the number of operators, the most frequent first; then the same of operators that the
            conversion adds.
        refused: why the target does not take the model; "" if it does.
    """

    target: str
    format: str
    integers: int = 0
    total: int = 0
    reasons: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TargetAudits(Shown):
    """The audits of a model for all targets whose kernels are known.

    Attributes:
        source: the file.
        targets: one for each.
    """

    source: str
    targets: tuple[TargetAudit, ...]

    @property
    def sentence(self) -> str:
        """How many targets take the model, and how many of these run all of it on integers."""
        taken = [item for item in self.targets if not item.refused]
        whole = f"{sum(not item.reasons for item in taken)} run all of it on integers"
        found = whole if not taken or any(item.total for item in taken) else NOT_QUANTIZED
        return f"{format_text(Path(self.source).name)}: {len(taken)} of {len(self.targets)} targets take it, {found}"

    def tables(self) -> tuple[Rows, ...]:
        """A row for each target; none of a float model that every target takes."""
        if not any(item.total or item.refused for item in self.targets):
            return ()
        rows = tuple(
            (
                item.target, item.format, "" if item.refused else f"{item.integers} of {item.total}",
                format_sentence(f"refused: {_first_rule(item.refused)}" if item.refused else format_some(item.reasons, _NAMED)),
            )
            for item in self.targets
        )  # fmt: skip
        marks = tuple("approximate" if item.reasons else "unexplained" if item.refused else "" for item in self.targets)
        return (Rows("Operators of the model that run on integers", ("target", "format", ">on integers", "why not all"), rows, marks),)


def _first_rule(reason: str) -> str:
    """Of what a target refuses in several places the first rule, else the reason."""
    rules = [line.removeprefix("- rule: ").partition(". Broken by")[0] for line in reason.splitlines() if line.startswith("- rule: ")]
    return rules[0] if rules else reason


@with_checked_arguments
def audit_all(model: Model, *, format: str = "", **options: Unpack[ReadOptions]) -> TargetAudits:
    """Predict for every target whose kernels are known which operators of a model it runs as integers; nothing is written.

    Args:
        model: a model file, its content as bytes, or a graph.
        format: the name of its format, if suffix and content do not determine it.
        options: of the model's reader, such as input_shape.

    Raises:
        QConvertError: the model cannot be read.
    """
    graph = load(model, format, **options)
    return TargetAudits(model_title(model), tuple(_audit_target(graph, target) for target in targets().values() if target.knows_kernels))


def _audit_target(graph: Graph, target: Target) -> TargetAudit:
    try:
        fitted, _ = normalize(graph, target)
        refuse_violations(fitted, target)
    except QConvertError as error:
        return TargetAudit(target.name, target.format, refused=error.reason)
    counts = [op for inner in closed_graphs(graph) for op in inner.ops if target.accelerator is not None or kind_of(op).rule != "convert"]
    own = {_operator_of(op) for op in counts}
    reasons, added = dict[str, str](), Counter[str]()
    for op, verdict in audit_operators(fitted, target, with_floats=True):
        is_integer = verdict.runs == "integers"
        if not is_integer and target.accelerator is None and kind_of(op).rule == "convert":
            continue
        if (name := _operator_of(op)) in own:
            reasons[name] = reasons.get(name) or ("" if is_integer else verdict.rule)
        elif not is_integer:
            added[f"{verdict.rule} (added by the conversion)"] += 1
    floats = Counter(reason for reason in reasons.values() if reason)
    listed = tuple(f"{count}: {reason}" for reason, count in (*floats.most_common(), *added.most_common()))
    return TargetAudit(target.name, target.format, len(reasons) - floats.total(), len(reasons), listed)


def _operator_of(op: Op) -> str:
    """Return what all operators have in common that one operator of the model became."""
    return op.source or next(filter(None, op.outputs), "")
