"""calibrate(): the grids of a float network, from data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.calibration.extremes import MinMax
from qconvert.calibration.methods import observer
from qconvert.calibration.observer import Histogram, Observer
from qconvert.calibration.observing import Progress, observe
from qconvert.calibration.places import Group, Plan, Weights, plan
from qconvert.calibration.quality import Noise
from qconvert.calibration.watching import Watched, watched
from qconvert.calibration.workers import workers_of
from qconvert.conversion import load
from qconvert.conversion.normalizing import run_passes
from qconvert.data import Preparation
from qconvert.data.streams import Data, Samples
from qconvert.encodings import Encoding, Encodings, Grid, Place, Range, grid_of
from qconvert.errors import OptionError, UnsupportedError
from qconvert.graph import Graph
from qconvert.passes.apply_encodings import PASSES

__all__ = ["Calibration", "TensorReport", "calibrate", "calibrated"]

#: What makes of a network what is quantized. Encodings name the tensors of that graph.
PREPARED = ("fold_batch_norm",)
#: Samples over which the noise of the chosen grids is measured.
_MEASURED = 4


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What calibration found of one tensor, and of those that share its grid.

    Attributes:
        names: of the tensors.
        lowest, highest: the extremes that were seen.
        grid: what was chosen.
        origin: who chose it.
        sqnr_db: signal to noise of the values on the grid; None where nothing is rounded away.
        clipped: the share of values beyond the grid.
        histogram: of the values, where the method counts them.
    """

    names: tuple[str, ...]
    lowest: float
    highest: float
    grid: Grid
    origin: str
    sqnr_db: float | None = None
    clipped: float = 0.0
    histogram: Histogram | None = None

    @property
    def range(self) -> tuple[float, float]:
        """The real values that the smallest and the largest stored value stand for."""
        q = self.grid.quantization
        low, high = (float((limit - int(q.zero_point[0])) * float(q.scale[0])) for limit in q.limits(self.grid.dtype))
        return low, high


@dataclass(frozen=True, slots=True)
class Calibration:
    """What calibrate() found.

    Attributes:
        graph: the float network that the encodings are of.
        encodings: of its tensors.
        tensors: activations, in the order of the graph.
        samples: how many were seen.
        notes: what the user should know.
    """

    graph: Graph
    encodings: Encodings
    tensors: tuple[TensorReport, ...]
    samples: int
    notes: tuple[str, ...] = ()


def calibrate(model: str | Path | Graph, data: Data, **options: Any) -> Encodings:
    """The encodings of a float network, chosen from data: calibrated() has the arguments, and gives what was found besides.

    Example:
        scales = qconvert.calibrate("float.onnx", "images/", method="entropy", preparation=Preparation(resize=(256,), crop=(224,)))
    """
    return calibrated(model, data, **options).encodings


@dataclass(frozen=True, slots=True)
class _Choices:
    """What the user chose, and what observers need to know of it."""

    method: str
    options: Mapping[str, Any]
    activations: str
    symmetric: bool | None
    weights: str
    per_channel: bool
    notes: list[str] = field(default_factory=list)


def calibrated(
    model: str | Path | Graph,
    data: Data,
    *,
    method: str = "min-max",
    activations: str = "int8",
    symmetric: bool | None = None,
    weights: str = "int8",
    per_channel: bool = True,
    target: str = "",
    samples: int | None = None,
    preparation: Preparation | None = None,
    runtime: str = "onnxruntime",
    jobs: int = 1,
    scheduler: str = "",
    progress: Progress = lambda what, done, total: None,
    **options: Any,
) -> Calibration:
    """Runs a float network on data, and chooses a grid for each tensor that integer kernels read or write.

    Args:
        model: a file, or a graph.
        data: files and folders; an array of samples; something that gives samples; a function that gives it anew (see data.streams).
        method: how ranges of activations are chosen; calibration.METHODS lists them.
        activations: storage type of activations.
        symmetric: whether their zero point is in the middle; by default what the method asks for, else no.
        weights: storage type of weights, whose grids are symmetric.
        per_channel: whether weights have a scale for each output channel.
        target: the one target that the grids have to suit; by default they suit TFLite and ONNX.
        samples: how many at most; by default all.
        preparation: of images, and of real numbers in files.
        runtime: what runs the network: "onnxruntime" or "litert".
        jobs: how many processes of this machine run it; 0 for as many as it has cores.
        scheduler: the address of a dask.distributed scheduler, whose workers run it.
        progress: is called with (what, done, total); total is 0 where it is not known.
        options: of the method.

    Raises:
        QConvertError: the network or the data cannot be read, do not fit, or give NaN; or there is nothing to quantize.
    """
    make = observer(method, **options)
    graph = prepared(model)
    samples_of = Samples(graph, data, samples, preparation)
    found = plan(graph, target, activations)
    chosen = _Choices(method, options, activations, symmetric, weights, per_channel)
    with closing(workers_of(jobs, scheduler)) as workers, tempfile.TemporaryDirectory(prefix="qconvert-") as folder:
        network = watched(graph, found.observed, Path(folder), runtime, _threads(jobs, scheduler))
        observers, seen = observe(network, found.observed, _observers(graph, found, make), samples_of, workers=workers, progress=progress)
        reports = tuple(_report(group, one, chosen, seen) for group, one in zip(found.groups, observers, strict=True))
        reports = _measured(network, found, reports, graph, data, min(samples or _MEASURED, _MEASURED), preparation)
    notes = (*([samples_of.note] if samples_of.note else []), *found.notes)
    encodings = _encodings(graph, found, reports, chosen, f"{method} of {seen} samples")
    return Calibration(graph, encodings, reports, seen, notes)


def prepared(model: str | Path | Graph) -> Graph:
    """The network as it is quantized: a float graph whose normalizations are part of its layers.

    Raises:
        QConvertError: the file cannot be read, or the network is quantized already.
    """
    graph = model if isinstance(model, Graph) else load(model)
    graph, _ = run_passes(graph, PREPARED)
    quantized = [name for name, tensor in graph.tensors.items() if tensor.is_quantized]
    if quantized:
        reason = f"the network is quantized already: {len(quantized)} tensors have scales, the first {quantized[0]!r}"
        file = "" if isinstance(model, Graph) else str(model)
        raise UnsupportedError(reason, file=file, remedy="Calibrate its float form; `qconvert extract` makes one.")
    return graph


def _threads(jobs: int, scheduler: str) -> int:
    cores = os.cpu_count() or 1
    return 1 if scheduler or jobs == 0 else max(1, cores // jobs)


def _observers(graph: Graph, found: Plan, make: Callable[[], Observer]) -> tuple[Observer, ...]:
    """The observer of each group. Where constants take part, extremes decide: nobody draws constants from a distribution."""
    observers = tuple(MinMax() if group.constants else make() for group in found.groups)
    for group, seeing in zip(found.groups, observers, strict=True):
        for name in group.constants:
            data = graph[name].data
            assert data is not None
            seeing.update(data)
    return observers


def _report(group: Group, seeing: Observer, chosen: _Choices, seen: int) -> TensorReport:
    """The grid of a group."""
    if group.fixed is not None:
        return TensorReport(group.names, 0.0, 0.0, group.fixed, "demanded by the target")
    if not seeing.count:
        raise OptionError("no sample gives it a value", where=repr(group.names[0]))
    asked = {} if chosen.symmetric is None else {"symmetric": chosen.symmetric}
    grid = seeing.grid(chosen.activations, **asked)
    origin = "its constant values" if not group.seen else f"{'min-max' if group.constants else chosen.method} of {seen} samples"
    return TensorReport(group.names, seeing.lowest, seeing.highest, grid, origin, histogram=seeing.histogram())


def _measured(
    network: Watched, found: Plan, reports: tuple[TensorReport, ...], graph: Graph, data: Data, count: int, preparation: Preparation | None
) -> tuple[TensorReport, ...]:
    """The reports with the noise of their grids; without, where the data are an iterator, which gives its samples once."""
    if isinstance(data, type(iter(()))) or (hasattr(data, "__next__")):
        return reports
    noises = tuple(Noise(None if group.fixed is not None else report.grid) for group, report in zip(found.groups, reports, strict=True))
    noises, _ = observe(network, found.observed, noises, Samples(graph, data, count, preparation))
    return tuple(replace(report, sqnr_db=noise.sqnr_db, clipped=noise.clipped) for report, noise in zip(reports, noises, strict=True))


def _encodings(graph: Graph, found: Plan, reports: tuple[TensorReport, ...], chosen: _Choices, origin: str) -> Encodings:
    entries: dict[Place, Encoding] = {}
    for report in reports:
        entries.update({Place(name): Encoding(report.grid, origin=report.origin) for name in report.names})
    for item in found.weights:
        entries[Place(item.name)] = Encoding(_weights_grid(graph, item, chosen), origin="max-abs")
    return Encodings(entries, origin, metadata={PASSES: ",".join(PREPARED)})


def _weights_grid(graph: Graph, item: Weights, chosen: _Choices) -> Grid:
    data = graph[item.name].data
    assert data is not None
    axis = item.axis if chosen.per_channel else None
    others = tuple(index for index in range(data.ndim) if index != axis) if axis is not None else None
    highest = np.atleast_1d(np.abs(data).max(axis=others, initial=0)).astype(np.float64)
    return grid_of(Range(-highest, highest, axis), chosen.weights, symmetric=True, narrow=chosen.weights.startswith("int"))
