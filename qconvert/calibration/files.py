"""calibrate_file(): from a float model's file to its encodings, or to a quantized model."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qconvert.calibration.driver import run_calibration
from qconvert.calibration.methods import METHODS
from qconvert.calibration.report import Calibration
from qconvert.conversion import ConversionReport, convert, load, save
from qconvert.conversion.converting import KEYWORDS
from qconvert.conversion.encodings import save_encodings
from qconvert.conversion.loading import source_format as format_to_read
from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.data.samples import Data
from qconvert.errors import OptionError
from qconvert.files import require_writable
from qconvert.files.system import temporary_folder
from qconvert.plugins import (
    Change,
    Format,
    Target,
    declared_options,
    encodings_format_of,
    format_named,
    format_of,
    formats,
    pass_named,
)
from qconvert.plugins.options import check_options


def calibrate_file(
    model: str | Path,
    data: Data,
    result: str | Path,
    *,
    real: str | Path = "",
    scales: str | Path = "",
    source_format: str = "",
    result_format: str = "",
    target: str = "",
    force: bool = False,
    writing: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> tuple[Calibration, ConversionReport | tuple[Change, ...]]:
    """Calibrates a float model, and writes its encodings or the quantized model, as the result's suffix says.

    Args:
        model: the float model's file.
        data: see run_calibration().
        result: the file to write.
        real: a file for the float network as it was calibrated; "" for none. Equalized weights and corrected biases are in it.
        scales: a file for the encodings, next to a quantized model; "" for none. A check of the model against the float one needs it.
        source_format, result_format: names of formats; by default the suffixes decide.
        target: what the result is for; the quantizations suit it.
        force: whether existing files may be replaced.
        writing: options of the model's reader, of the passes and of the result's writer.
        options: those of CalibrateOptions.

    Returns:
        What calibration found, and the report of the conversion, or what the writer of encodings says.

    Raises:
        QConvertError: see run_calibration() and convert(); nothing is written then.
    """
    model = Path(model)
    kind = _encodings_format(Path(result), result_format)
    writer = kind or (format_named(result_format) if result_format else format_of(Path(result)))
    result = writer.result_path(result, is_encodings=kind is not None)
    floats = format_of(Path(real)).result_path(real) if real else None
    kept = encodings_format_of(Path(scales), is_read=False).result_path(scales, is_encodings=True) if scales else None
    places = [Path(one) for one in (result, floats, kept) if one]
    _require_places(places, [model, *_pick_data_files(places, data)], force)
    target = target or (kind.default_target if kind is not None else "")
    if kind is not None and not real and (options.get("equalization") or options.get("bias_correction")):
        raise OptionError(
            "files of scales do not hold equalized weights and corrected biases",
            remedy="Write the network that has them as well: --float FILE. Or write a quantized model.",
            rule="scales-only",
        )
    reader = format_to_read(model, source_format)
    named = writer.form_of(result, writing) if writer.form_of is not None else ""
    chosen = chosen_target(writer, target, named) if kind is None else None
    _require_options(writing, reader, writer, chosen, options.get("method", "min-max"))
    own = {option.name for option in reader.read_options}
    reading = {name: value for name, value in writing.items() if name in own}
    network = load(model, source_format, **reading) if reading else model
    found = run_calibration(network, data, format=source_format, target=target, **options)
    if scales:
        save_encodings(found.encodings, scales, graph=found.graph, force=force, reads=(model,))
    if real:
        form = format_of(Path(real))
        fitted, _ = normalize(found.graph, chosen_target(form, form.own_target))
        save(fitted, real, force=force, reads=(model,))
    if kind is not None:
        written = {name: value for name, value in writing.items() if name not in reading}
        return found, save_encodings(found.encodings, result, kind.name, graph=found.graph, force=force, reads=(model,), **written)
    arguments = {**writing, "source_format": source_format, "result_format": result_format, "target": target, "force": force}
    return found, _convert_calibrated(found, model, result, scales, reading, arguments)


def _require_options(given: Mapping[str, Any], reader: Format, writer: Format, target: Target | None, method: str) -> None:
    """Raise OptionError for an option that nothing here takes, or of a wrong value, before the network runs, which may take long."""
    idle = declared_options()
    stated = {name: value for name, value in given.items() if name not in KEYWORDS and (name not in idle or value != idle[name].default)}
    names = ("apply_encodings", *target.passes) if target is not None else ()
    of_method = METHODS[method].options if method in METHODS else ()
    declared = (*of_method, *reader.read_options, *(option for name in names for option in pass_named(name).options), *writer.write_options)
    check_options(stated, declared, f"neither the method {method} nor a conversion from {reader.name} to {writer.name}")


def _pick_data_files(paths: Sequence[Path], data: Data) -> list[Path]:
    """Those of the files that are data, by their names or in a folder of data."""
    given = data if isinstance(data, list | tuple) else [data]
    places = {os.path.realpath(one) for one in given if isinstance(one, str | Path)}
    there = {path: os.path.realpath(path) for path in paths if os.path.exists(path)}
    return [path for path, place in there.items() if not places.isdisjoint((place, os.path.dirname(place)))]


def _require_places(paths: Sequence[Path], reads: Sequence[Path], force: bool) -> None:
    """Raises where one of the files cannot be written, or two of them are the same, so that the later would replace the earlier."""
    for number, path in enumerate(paths):
        require_writable(path, force=force, reads=reads)
        if os.path.realpath(path) in map(os.path.realpath, paths[:number]):
            raise OptionError(
                "two results would be written to this file",
                file=str(path),
                remedy="Give each of them a name of its own.",
                rule="same-file-twice",
            )


def _convert_calibrated(
    found: Calibration, model: Path, result: Path, kept: str | Path, reading: Collection[str], arguments: Mapping[str, Any]
) -> ConversionReport:
    """The quantized model, of the float one, or of the network that was made of it, which was read with the options in `reading`."""
    with temporary_folder() as folder:
        scales, source = Path(kept or Path(folder, "calibration.json")), model
        if not kept:
            save_encodings(found.encodings, scales, "encodings")
        if found.is_changed:
            source = Path(folder, f"{model.stem}.qgraph")
            save(found.graph, source)
            arguments = {name: value for name, value in arguments.items() if name not in (*reading, "source_format")}
        report = convert(source, result, encodings=str(scales), **arguments)
        files = {name: file for name, file in report.files.items() if kept or name != "encodings"}  # not one of the temporary folder
        return replace(report, source=str(model), files=files)


def _encodings_format(result: Path, name: str) -> Format | None:
    """The format of encodings that the result is of; None if it is a model."""
    if name:
        found = format_named(name)
        return found if found.write is None else None
    suffix = result.suffix.lower()
    models = [item for item in formats().values() if item.write is not None]
    if any(suffix in item.suffixes for item in models):
        return None
    try:
        return encodings_format_of(result, is_read=False)
    except OptionError as error:
        known = ", ".join(dict.fromkeys(suffix for item in models for suffix in item.suffixes))
        raise OptionError(
            f"the suffix {result.suffix!r} belongs to no format",
            file=str(result),
            remedy=f"{error.remedy} Of models: {known}.",
            rule="unknown-suffix",
        ) from error
