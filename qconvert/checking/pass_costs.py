"""pass_costs(): what each pass would cost a model, before anything is written for good.

A pass that is not exact runs on the model's graph; the result, in the form of the format's default target, and the model itself run in
onnxruntime on the same inputs. Where the target does not take it, the evaluator runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from qconvert.arguments import Progress, no_progress, with_checked_arguments
from qconvert.checking.findings import lowest_sqnr
from qconvert.checking.outputs import Border
from qconvert.conversion import load, normalize, run_passes
from qconvert.conversion.in_memory import Model
from qconvert.conversion.normalizing import chosen_target
from qconvert.conversion.saving import write_file
from qconvert.data import Preparation, accepted_inputs, load_inputs
from qconvert.data.samples import require_samples
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Arrays, Graph, Tensor
from qconvert.passes.linear import weight_uses
from qconvert.plugins import Change, Cost, LoadedModel, ModelFile, Pass, format_named, pass_named, passes, runtime_of
from qconvert.plugins.options import ReadOptions
from qconvert.rules.changed_values import changed_names, paired_tensors
from qconvert.targets.audit import refuse_violations

_FORMAT = "onnx"


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a pass would cost a model.

    Attributes:
        name: of the pass.
        options: with which it ran, where they are not its defaults.
        changes: the texts of its changes.
        activations: how many computed tensors get another type, scale or zero point.
        weights: how many weights get other integers, of those that the model has.
        worst: the largest cost of one tensor, as the pass measures it; None if it measures none.
        sqnr_db: signal to difference of the output that differs most, in dB; None if no output differs, or nothing was run.
        same_top1: share of inputs with the same best class, at the worst output; None where no output is a row of scores.
        ran: what ran it, in words; "" if nothing did.
        refused: why it, or its result, did not run; "" if it did.
    """

    name: str
    options: Mapping[str, Any]
    changes: tuple[Change, ...] = ()
    activations: int = 0
    weights: int = 0
    worst: Cost | None = None
    sqnr_db: float | None = None
    same_top1: float | None = None
    ran: str = ""
    refused: str = ""


@with_checked_arguments
def pass_costs(
    model: Model,
    *,
    format: str = "",
    names: Sequence[str] = (),
    data: Sequence[str | Path] = (),
    preparation: Preparation | None = None,
    samples: int = 8,
    seed: int = 0,
    feeds: Sequence[Arrays] = (),
    progress: Progress = no_progress,
    **options: Unpack[ReadOptions],
) -> tuple[PassCost, ...]:
    """What each pass that is not exact would cost a model, the cheapest first; those that change nothing are left out.

    Args:
        model: a model file, its content as bytes, or a graph.
        format: the name of its format, if suffix and content do not determine it.
        names: of the passes to try; by default all that are not exact, with the options in Pass.tried.
        data: files and folders of inputs (see qconvert/data); random inputs without.
        preparation: of images and floats in these.
        samples: how many inputs at most.
        seed: of random inputs.
        feeds: stored inputs by name, in the place of `data`.
        progress: is called with (what, done, total).
        options: of the format's reader.

    Raises:
        QConvertError: the model cannot be read, the inputs do not fit, or nothing runs the model.
    """
    require_samples(samples)
    graph = load(model, format, **options)
    tried = [(item, chosen) for item in _choose_passes(names) for chosen in item.tried]
    with temporary_folder() as folder:
        source = _Running.of(graph, Path(folder) / "source.onnx")
        inputs: Sequence[Arrays] = feeds
        if data and not feeds:
            inputs, _ = load_inputs(graph, data, samples, (preparation or Preparation()).with_stretch())
        if inputs:
            expected = [source.run(feed) for feed in inputs]
        else:
            inputs, expected, _ = accepted_inputs(graph, samples, seed, source.run)
        found: list[PassCost] = []
        for done, (item, chosen) in enumerate(tried):
            found += _try_pass(item, chosen, graph, (inputs, expected), Path(folder) / f"{done}.onnx")
            progress("passes", done + 1, len(tried))
    return tuple(sorted(found, key=lambda cost: (bool(cost.refused), -(np.inf if cost.sqnr_db is None else cost.sqnr_db))))


def _choose_passes(names: Sequence[str]) -> Iterable[Pass]:
    return [pass_named(name) for name in names] or [item for item in passes().values() if not item.exact]


def _try_pass(
    item: Pass, chosen: Mapping[str, Any], graph: Graph, runs: tuple[Sequence[Arrays], list[dict[str, Array]]], path: Path
) -> list[PassCost]:
    """The cost of one pass with some options; nothing if it finds nothing to do."""
    try:
        changed, changes = run_passes(graph, [item.name], None, **chosen)
    except QConvertError as error:
        return [PassCost(item.name, chosen, refused=error.reason)]
    if changed is graph:
        return []
    costs = sorted((cost for change in changes for cost in change.costs if cost.sqnr_db is not None), key=lambda cost: cost.sqnr_db or 0.0)
    names = {name for name in changed_names(graph, changed) if not changed[name].is_constant}
    said = PassCost(item.name, chosen, changes, len(names), _count_changed_weights(graph, changed), costs[0] if costs else None)
    try:
        return [_measure_outputs(said, graph, _Running.of(changed, path), *runs)]
    except QConvertError as error:
        return [replace(said, refused=error.reason)]


def _measure_outputs(
    said: PassCost, graph: Graph, running: _Running, feeds: Sequence[Arrays], expected: Sequence[dict[str, Array]]
) -> PassCost:
    """The cost with what its outputs are, next to those expected."""
    border = Border.of(graph, running.graph, {*graph.inputs, *graph.outputs})
    model = running.model
    given = (running.run(feed) if model is None else model.run(border.convert_inputs(feed, model)) for feed in feeds)
    outputs = [border.compare_output(name, found) for name, found in border.pair_runs(zip(expected, given, strict=True)).items()]
    top1 = min((item.same_top1 for item in outputs if item.same_top1 is not None), default=None)
    return replace(said, sqnr_db=lowest_sqnr(outputs), same_top1=top1, ran=running.by)


def _count_changed_weights(graph: Graph, changed: Graph) -> int:
    """How many weights have other integers, less their zero points."""
    weights = {use.name for use in weight_uses(graph)}
    different = {a.name for a, b in paired_tensors(graph, changed) if a.name in weights and _has_other_integers(a, b)}
    return len(different)


def _has_other_integers(a: Tensor, b: Tensor) -> bool:
    if a.data is None or b.data is None or a.quantization is None or b.quantization is None or a.data.shape != b.data.shape:
        return True
    return not np.array_equal(a.steps(), b.steps())


@dataclass(frozen=True, slots=True)
class _Running:
    """A graph that runs: in the runtime of a file written of it, or in the evaluator.

    Attributes:
        graph: that of the file, or the graph itself.
        by: what runs it.
        model: the loaded file; None where the evaluator runs.
    """

    graph: Graph
    by: str
    model: LoadedModel | None = field(default=None)

    @classmethod
    def of(cls, graph: Graph, path: Path) -> _Running:
        try:
            writer = format_named(_FORMAT)
            target = chosen_target(writer, "")
            fitted, _ = normalize(graph, target)
            refuse_violations(fitted, target)
            write_file(fitted, path, writer)
            runtime, kernels = runtime_of(_FORMAT)
            model = runtime.open(ModelFile(path, kernels))
            return cls(load(path), f"{runtime.title}, {target.name if target else _FORMAT}", model)
        except QConvertError:
            return cls(graph, "the evaluator")

    def run(self, feed: Arrays) -> dict[str, Array]:
        """The stored outputs in order; `feed` is by the graph's names."""
        if self.model is not None:
            return self.model.run(dict(zip(self.model.inputs, (feed[name] for name in self.graph.inputs), strict=True)))
        found = evaluate(self.graph, dict(feed))
        return {name: found[name] for name in self.graph.outputs}
