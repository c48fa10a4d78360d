"""calibrate(): the quantizations of a float network, from data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from qconvert.arguments import with_checked_arguments
from qconvert.calibration.encodings_and_biases import drop_tiny_scales, encodings_of, with_corrected_biases
from qconvert.calibration.layer_changes import equalize
from qconvert.calibration.methods import observer
from qconvert.calibration.observer import MinMax, Observer, Percentile
from qconvert.calibration.observing import Watched, observe, unload_networks, write_for_runtime
from qconvert.calibration.places import Group, Plan, plan
from qconvert.calibration.report import (
    Calibration,
    Noise,
    Sensitivity,
    TensorReport,
    drop_entries,
    measure_output_sqnr,
    sensitivities,
    warning_of_tensors,
)
from qconvert.calibration.settings import CalibrateOptions, Settings
from qconvert.calibration.workers import Workers, workers_of
from qconvert.conversion import load
from qconvert.conversion.in_memory import Model
from qconvert.conversion.normalizing import run_passes
from qconvert.data.samples import Data, Samples
from qconvert.encodings import Encoding, Encodings, Place, Range, quantization_of
from qconvert.errors import LossError, OptionError, UnsupportedError, format_count
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Graph
from qconvert.passes.constants import fold_float_constants
from qconvert.plugins import target_named

#: What makes of a network what is quantized. Encodings name the tensors of that graph.
PREPARED = ("fold_batch_norm",)
#: Samples over which the noise of the chosen quantizations is measured.
MEASURED = 4
#: What outputs may lose in dB compared with min-max before a calibration is warned of.
_LOST_DB = 20
#: Samples whose means biases are corrected by.
CORRECTED = 64
#: Samples on which each tensor is quantized by itself.
_TRIED = 8


@with_checked_arguments
def calibrate(model: Model, data: Data, **options: Unpack[CalibrateOptions]) -> Encodings:
    """The encodings of a float network, chosen from data.

    Args:
        model, data: of calibration.driver.run_calibration(), which gives what was found besides.
        options: see CalibrateOptions.

    Example:
        scales = qconvert.calibrate("float.onnx", "images/", method="entropy", preparation=Preparation(resize=(256,), crop=(224,)))
    """
    return run_calibration(model, data, **options).encodings


@dataclass(slots=True)
class _Work:
    """A calibration on its way: what the user chose, and what was found so far."""

    graph: Graph
    data: Data
    settings: Settings
    workers: Workers | None
    folder: Path
    notes: list[str]
    first: Data = ()
    _folders: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        """Keeps the first samples of an iterator for the measurement of noise, as an iterator gives its samples only once."""
        self.first = self.data
        if isinstance(self.data, Iterator):
            self.first = list(islice(self.data, MEASURED))
            self.data = chain(self.first, self.data)

    def samples(self, most: int | None = None) -> Samples:
        limits = [limit for limit in (self.settings.samples, most) if limit is not None]
        return Samples(self.graph, self.data, min(limits, default=None), self.settings.preparation)

    def noise_samples(self) -> Samples:
        """The samples that the noise of quantizations is measured on."""
        return Samples(self.graph, self.first, min(MEASURED, self.settings.samples or MEASURED), self.settings.preparation)

    def place(self) -> Path:
        """An empty folder."""
        found = self.folder / str(next(self._folders))
        found.mkdir()
        return found

    def write_network(self, found: Plan) -> Watched:
        return write_for_runtime(self.graph, found.observed_tensors, self.place(), self.settings.runtime, _threads(self.settings))


@with_checked_arguments
def run_calibration(model: Model, data: Data, *, format: str = "", **options: Any) -> Calibration:
    """Runs a float network on data, and chooses a quantization for each tensor that integer kernels read or write.

    Args:
        model: a file, its content as bytes, or a graph.
        format: the name of its format, if suffix and content do not determine it.
        data: files and folders; an array of samples; something that gives samples; a function that gives it again (see data.streams).
        options: those of CalibrateOptions but for reading.

    Raises:
        QConvertError: the network or the data cannot be read, do not fit, or give NaN; or there is nothing to quantize.
        LossError: there is something to warn of, with `strict`.
    """
    settings = _fit_to_target(Settings.of(options))
    makes = [observer(settings.method, of_input=of_input, **settings.method_options) for of_input in (False, True)]
    graph, notes = load_float_network(model, format), list[str]()
    if settings.equalization:
        graph, said = equalize(graph)
        notes += said
    found = _skip_tensors(graph, plan(graph, settings.target, settings.activations), settings.skip)
    with workers_of(settings.jobs, settings.scheduler) as workers, temporary_folder() as folder:
        work = _Work(graph, data, settings, workers, Path(folder), notes)
        reports, seen = _observe_activations(work, found, makes)
        found, reports, tiny = drop_tiny_scales(found, reports)
        encodings, kept = encodings_of(graph, found, reports, settings, f"{settings.method} of {format_count(seen, 'sample')}")
        notes += [*tiny, *kept]
        costs = _measure_costs(work, found, encodings)
        warnings = _warnings(work, found, reports, encodings)
        if settings.strict and warnings:
            raise LossError(
                "\n".join(warnings),
                remedy="Use another --method (min-max clips nothing) or other data, or leave out --strict.",
                rule="values-clipped",
            )
        worst = tuple(name for one in costs[: max(settings.keep_float, 0)] for name in one.names)
        encodings = drop_entries(encodings, {*worst})
        if settings.bias_correction:
            samples = work.samples(CORRECTED)
            graph, said = with_corrected_biases(graph, encodings, samples, settings.runtime, work.place, settings.progress)
            notes += said
    changed = settings.equalization or settings.bias_correction
    return Calibration(graph, encodings, reports, seen, costs, worst, changed, (*notes, *found.notes), warnings)


def _fit_to_target(settings: Settings) -> Settings:
    """The settings, with symmetric activations where the file of scales of the target asks for these and the user for nothing."""
    if settings.symmetric is not None or not settings.target or not target_named(settings.target).needs_scales:
        return settings
    symmetric = target_named(settings.target).storage.symmetric_activations
    return replace(settings, symmetric=settings.activations in symmetric or None)


def _measure_costs(work: _Work, found: Plan, encodings: Encodings) -> tuple[Sensitivity, ...]:
    """What quantizing each tensor by itself costs the outputs, if anything depends on it."""
    settings = work.settings
    if not (settings.sensitivity or settings.keep_float):
        return ()
    units = [*(group.names for group in found.groups), *((item.name,) for item in found.weights)]
    return sensitivities(work.graph, encodings, units, list(work.samples(_TRIED)), settings.runtime, settings.progress)


def load_float_network(model: Model, format: str) -> Graph:
    """The network as it is quantized: a float graph whose weights are constants, and normalizations part of its layers.

    Raises:
        QConvertError: the file cannot be read, or the network is quantized already, or has functions or states.
    """
    graph = load(model, format)
    file = "" if isinstance(model, Graph) else str(model)
    if graph.functions or graph.states:
        raise UnsupportedError(
            "the network has functions or states; calibration requires a network without them",
            file=file,
            remedy="Calibrate the part without them.",
            rule="functions-or-states",
        )
    quantized = [name for name, tensor in graph.tensors.items() if tensor.is_quantized]
    if quantized:
        reason = f"the network is quantized already: {len(quantized)} tensors have scales, the first {quantized[0]!r}"
        command = f"qconvert extract-scales {shlex.quote(file or 'model.tflite')} scales.json --float float.onnx"
        raise UnsupportedError(reason, file=file, remedy=f"Calibrate its float form: `{command}` writes one.", rule="already-quantized")
    return run_passes(fold_float_constants(graph), PREPARED)[0]


def _skip_tensors(graph: Graph, found: Plan, names: tuple[str, ...]) -> Plan:
    """The plan without tensors of these names, and without the results and weights of operators that are called so.

    Raises:
        OptionError: there is no such tensor or operator.
    """
    gone: set[str] = set()
    for name in names:
        ops = [op for op in graph.ops if name == op.source.partition(" ")[2] or name in op.outputs]
        if not ops and name not in graph.tensors:
            raise OptionError("no tensor or operator that is to stay float has this name", where=repr(name), rule="unknown-tensor")
        gone.update([name], *((*op.outputs, *op.inputs[1:]) for op in ops))
    groups = tuple(group for group in found.groups if gone.isdisjoint(group.names))
    return replace(found, groups=groups, weights=tuple(item for item in found.weights if item.name not in gone))


def _threads(settings: Settings) -> int:
    cores = os.cpu_count() or 1
    return 1 if settings.scheduler or settings.jobs == 0 else max(1, cores // settings.jobs)


class _Counting:
    """An observer, and next to it one that counts values for a plot. Shown to observe() like an Observer."""

    def __init__(self, chosen: Observer) -> None:
        self.chosen, self.counted = chosen, Percentile()

    @property
    def passes(self) -> int:
        return self.chosen.passes

    def update(self, values: Array) -> None:
        self.chosen.update(values)
        self.counted.update(values)

    def next_pass(self) -> None:
        self.chosen.next_pass()
        self.counted.next_pass()

    def merge(self, other: Self) -> None:
        self.chosen.merge(other.chosen)
        self.counted.merge(other.counted)


#: What makes the observers of tensors inside the network, and of its inputs.
_Makes = Sequence[Callable[[], Observer]]


def _observers(graph: Graph, found: Plan, makes: _Makes) -> tuple[Observer, ...]:
    """The observer of each group. Where constants take part, extremes decide: nobody draws constants from a distribution."""
    observers = tuple(MinMax() if group.constants else makes[not {*group.seen}.isdisjoint(graph.inputs)]() for group in found.groups)
    for group, seeing in zip(found.groups, observers, strict=True):
        for name in group.constants:
            data = graph[name].data
            assert data is not None
            seeing.update(data)
    return observers


def _observe_activations(work: _Work, found: Plan, makes: _Makes) -> tuple[tuple[TensorReport, ...], int]:
    """The quantization of each group, and how many samples were seen."""
    network, samples = work.write_network(found), work.samples()
    observers = _observers(work.graph, found, makes)
    counting = work.settings.histograms and observers[0].histogram() is None
    seeing = tuple(map(_Counting, observers)) if counting else observers
    seeing, seen = observe(network, found.observed_tensors, seeing, samples, workers=work.workers, progress=work.settings.progress)
    work.notes += samples.notes
    pairs = tuple((one.chosen, one.counted) if isinstance(one, _Counting) else (one, one) for one in seeing)
    reports = tuple(_report(group, *one, work.settings, seen) for group, one in zip(found.groups, pairs, strict=True))
    reports = _measure_noise(work, network, found, reports)
    unload_networks()
    return reports, seen


def _report(group: Group, seeing: Observer, counted: Observer, chosen: Settings, seen: int) -> TensorReport:
    """The quantization of a group."""
    if group.fixed is not None:
        return TensorReport(group.names, 0.0, 0.0, group.fixed, "required by the target")
    if not seeing.count:
        raise OptionError("no sample gives this tensor a value", where=repr(group.names[0]), rule="no-values")
    asked = {} if chosen.symmetric is None else {"symmetric": chosen.symmetric}
    quantization = seeing.quantization(chosen.activations, **asked)
    origin = (
        "its constant values" if not group.seen else f"{'min-max' if group.constants else chosen.method} of {format_count(seen, 'sample')}"
    )
    return TensorReport(group.names, seeing.lowest, seeing.highest, quantization, origin, histogram=counted.histogram())


def _measure_noise(work: _Work, network: Watched, found: Plan, reports: tuple[TensorReport, ...]) -> tuple[TensorReport, ...]:
    """The reports with the noise of their quantizations."""
    noises = tuple(Noise(None if group.fixed is not None else report.qparams) for group, report in zip(found.groups, reports, strict=True))
    noises, _ = observe(network, found.observed_tensors, noises, work.noise_samples())
    return tuple(replace(report, sqnr_db=noise.sqnr_db, clipped=noise.clipped_share) for report, noise in zip(reports, noises, strict=True))


def _warnings(work: _Work, found: Plan, reports: tuple[TensorReport, ...], encodings: Encodings) -> tuple[str, ...]:
    """What the user has to know of poor quantizations, measured on the first samples. Outputs lose 20 dB only where some value is clipped:
    scales that clip nothing are at most about twice those of min-max."""
    lost = ""
    clipped = [(group, report) for group, report in zip(found.groups, reports, strict=True) if report.clipped and group.fixed is None]
    if clipped:
        symmetric = bool(work.settings.symmetric)
        entries = {
            Place(name): Encoding(
                quantization_of(Range(*np.array([[report.lowest], [report.highest]])), work.settings.activations, symmetric=symmetric)
            )
            for _, report in clipped
            for name in report.names
        }
        choices = encodings, encodings.evolve({**encodings.entries, **entries})
        own, other = measure_output_sqnr(work.graph, choices, list(work.noise_samples()), work.settings.runtime)
        if own is not None and (other is None or other - own > _LOST_DB):
            best = "everything" if other is None else f"{other:.1f} dB"
            lost = f"the outputs have {own:.1f} dB; with scales of min-max they have {best}"
    return tuple(filter(None, (warning_of_tensors(reports), lost)))
