"""A picture of what calibration saw of each tensor: its histogram, and the range of the quantization that was chosen."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.calibration.report import Calibration, TensorReport
from qconvert.errors import MissingPackageError, OptionError, printable
from qconvert.files import whole_file

__all__ = ["SUFFIXES", "plot", "require_plots"]

SUFFIXES = (".svg", ".png", ".pdf")
_COLUMNS = 3
#: Bars of a picture; histograms have more bins.
_BARS = 128
_LONGEST = 48


def plot(found: Calibration, path: str | Path, *, force: bool = False) -> None:
    """Draws a histogram for each tensor whose values were counted, with lines at the limits of its quantization, in logarithmic counts.

    Args:
        found: a calibration with histograms.
        path: an .svg, .png or .pdf file.
        force: whether an existing file may be replaced.

    Raises:
        MissingPackageError: the extra `plots` is not installed.
        OptionError: the suffix is none of these.
    """
    path = Path(path)
    require_plots(path)
    from matplotlib.figure import Figure

    shown = [item for item in found.tensors if item.histogram is not None]
    rows = max(1, -(-len(shown) // _COLUMNS))
    figure = Figure(figsize=(5 * _COLUMNS, 2.2 * rows), layout="constrained")
    quantization = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axes, item in zip(quantization.flat, shown, strict=False):
        _draw(axes, item)
    for axes in list(quantization.flat)[len(shown) :]:
        axes.set_axis_off()
    figure.suptitle(found.encodings.origin)
    with whole_file(path, force=force) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def require_plots(path: Path) -> None:
    """Raises MissingPackageError or OptionError where a picture of that name cannot be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(
            "its suffix is of no picture format", file=str(path), remedy=f"Use one of {', '.join(SUFFIXES)}.", rule="unknown-suffix"
        )
    if find_spec("matplotlib") is None:
        raise MissingPackageError(
            "plots need the package matplotlib", remedy="Install it with: pip install 'qconvert[plots]'", rule="package-missing"
        )


def _draw(axes: Any, item: TensorReport) -> None:
    assert item.histogram is not None
    counts, edges = _merge_bins(item.histogram.counts, item.histogram.edges)
    axes.stairs(counts, edges, fill=True, color="0.6")
    for end in item.range:
        axes.axvline(end, color="tab:red", linewidth=1)
    axes.set_yscale("symlog")
    noise = "" if item.sqnr_db is None else f", {item.sqnr_db:.1f} dB"
    name = printable(item.names[0], one_line=True)
    axes.set_title(f"{name if len(name) <= _LONGEST else '…' + name[-_LONGEST:]}{noise}", fontsize="small", parse_math=False)


def _merge_bins(counts: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Neighbouring bins together, between the first and the last that hold anything."""
    filled = np.flatnonzero(counts)
    if not filled.size:
        return counts[:1], edges[:2]
    counts, edges = counts[filled[0] : filled[-1] + 1], edges[filled[0] : filled[-1] + 2]
    starts = np.arange(0, counts.size, max(1, -(-counts.size // _BARS)))
    return np.add.reduceat(counts, starts), np.append(edges[starts], edges[-1])
