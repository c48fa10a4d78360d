"""Which tensors hurt most: each is quantized by itself, and the outputs are compared with those of the float network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qconvert.calibration.network_values import Watching, write_for_runtime
from qconvert.calibration.observing import Progress
from qconvert.calibration.quality import decibels
from qconvert.encodings import Encodings, Place
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Array, Graph
from qconvert.passes.apply_encodings import insert_qdq

__all__ = ["Sensitivity", "drop_entries", "measure_output_sqnr", "sensitivities"]

Feeds = Sequence[Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What quantizing one tensor, or those that share its quantization, costs the outputs.

    Attributes:
        names: of the tensors.
        sqnr_db: signal to noise of the outputs, the worst of them; None where they stay the same.
    """

    names: tuple[str, ...]
    sqnr_db: float | None


def sensitivities(
    graph: Graph, encodings: Encodings, units: Sequence[tuple[str, ...]], feeds: Feeds, runtime: str, progress: Progress
) -> tuple[Sensitivity, ...]:
    """The cost of each unit, the worst first.

    Args:
        graph: the float network.
        encodings: of its tensors.
        units: names of tensors that are quantized together.
        feeds: what the network is run on.
        runtime: what runs it.
        progress: told of each unit.

    Raises:
        QConvertError: the runtime refuses the network.
    """
    expected = _outputs(graph, feeds, runtime)
    found = []
    for number, names in enumerate(units):
        progress("sensitivity", number, len(units))
        part = encodings.evolve({place: one for place, one in encodings.entries.items() if place.name in names})
        found.append(Sensitivity(names, _worst_sqnr(expected, _outputs(insert_qdq(graph, part), feeds, runtime))))
    progress("sensitivity", len(units), len(units))
    return tuple(sorted(found, key=lambda one: np.inf if one.sqnr_db is None else one.sqnr_db))


def measure_output_sqnr(graph: Graph, choices: Sequence[Encodings], feeds: Feeds, runtime: str) -> tuple[float | None, ...]:
    """Return the SQNR in dB of the worst output with each of several encodings; None where outputs stay the same.

    Raises:
        QConvertError: the runtime refuses the network.
    """
    expected = _outputs(graph, feeds, runtime)
    return tuple(_worst_sqnr(expected, _outputs(insert_qdq(graph, one), feeds, runtime)) for one in choices)


def _outputs(graph: Graph, feeds: Feeds, runtime: str) -> list[dict[str, Array]]:
    with temporary_folder() as folder:
        return list(Watching(write_for_runtime(graph, graph.outputs, Path(folder), runtime)).values(feeds))


def _worst_sqnr(expected: list[dict[str, Array]], found: list[dict[str, Array]]) -> float | None:
    ratios = []
    for name in expected[0] if expected else ():
        pairs = [(one[name].astype(np.float64), other[name].astype(np.float64)) for one, other in zip(expected, found, strict=True)]
        ratios.append(decibels(sum(float(np.vdot(a, a)) for a, _ in pairs), sum(float(np.vdot(a - b, a - b)) for a, b in pairs)))
    known = [ratio for ratio in ratios if ratio is not None]
    return min(known) if known else None


def drop_entries(encodings: Encodings, names: set[str]) -> Encodings:
    """The encodings of other tensors."""
    return encodings.evolve({place: one for place, one in encodings.entries.items() if place not in {Place(name) for name in names}})
