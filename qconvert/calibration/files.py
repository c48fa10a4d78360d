"""calibrate_file(): from a float model's file to its encodings, or to a quantized model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from qconvert.calibration.driver import Calibration, calibrated
from qconvert.conversion import ConversionReport, convert
from qconvert.conversion.encoded import save_encodings
from qconvert.data.streams import Data
from qconvert.files import require_writable
from qconvert.plugins import Change, Format, encodings_format_of, format_named, formats

__all__ = ["calibrate_file"]


def calibrate_file(
    model: str | Path,
    data: Data,
    result: str | Path,
    *,
    result_format: str = "",
    target: str = "",
    force: bool = False,
    writing: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Calibration, ConversionReport | tuple[Change, ...]]:
    """Calibrates a float model, and writes its encodings or the quantized model, as the result's suffix says.

    Args:
        model: the float model's file.
        data: see calibrated().
        result: the file to write.
        result_format: the name of a format; by default the suffix decides.
        target: what the result is for; the grids suit it.
        force: whether an existing result may be replaced.
        writing: options of the passes and of the result's writer.
        options: of calibrated().

    Returns:
        What calibration found, and the report of the conversion, or what the writer of encodings says.

    Raises:
        QConvertError: see calibrated() and convert(); nothing is written then.
    """
    model, result = Path(model), Path(result)
    require_writable(result, force=force, reads=[model])
    kind = _encodings_format(result, result_format)
    found = calibrated(model, data, target=target, **options)
    if kind is not None:
        reads = (model,)
        return found, save_encodings(found.encodings, result, kind.name, graph=found.graph, force=force, reads=reads, **(writing or {}))
    with tempfile.TemporaryDirectory(prefix="qconvert-") as folder:
        scales = Path(folder, "calibration.json")
        save_encodings(found.encodings, scales, "encodings")
        given = {"encodings": str(scales), **(writing or {})}
        return found, convert(model, result, result_format=result_format, target=target, force=force, **given)


def _encodings_format(result: Path, name: str) -> Format | None:
    """The format of encodings that the result is of; None if it is a model."""
    if name:
        found = format_named(name)
        return found if found.write is None else None
    suffix = result.suffix.lower()
    if any(suffix in item.suffixes and item.write is not None for item in formats().values()):
        return None
    return encodings_format_of(result, is_read=False)
