"""The command `calibrate`: a float model and data in, scales or a quantized model out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.cli.flags import (
    DebugFlag,
    ForceFlag,
    FromFlag,
    HtmlFlag,
    JsonFlag,
    OptionFlag,
    PreparationFlags,
    QuietFlag,
    conversion_flags,
    known_targets,
    with_flags,
)
from qconvert.cli.outcome import print_document
from qconvert.errors import OptionError
from qconvert.plugins import Option
from qconvert.plugins.options import parse_options

if TYPE_CHECKING:
    from qconvert.calibration.report import Calibration, TensorReport
    from qconvert.data.samples import Data
    from qconvert.tables import Rows


#: Lines of the table of sensitivity.
_MOST = 12


def _calibrate(
    model: Annotated[Path, typer.Argument(help="The float model to read; - for standard input, with --from.")],
    result: Annotated[
        str, typer.Option("--output", "-o", metavar="PATH", help="Scales (scales.json) or a quantized model (q.onnx, q.tflite …).")
    ],
    data: Annotated[list[str] | None, typer.Option("--data", help="A folder or files: images, .npy, .npz, .bin; repeatable.")] = None,
    mnn_config: Annotated[
        Path | None, typer.Option("--mnn-config", help="Configuration of MNN's quantizer: data, preparation and methods.", hidden=True)
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric/--affine", help="Whether zero points of activations are in the middle.")
    ] = None,
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="A scale for each output channel of weights, or one.")
    ] = True,
    real: Annotated[str | None, typer.Option("--float", metavar="PATH", help="Also write the float network as it was calibrated.")] = None,
    scales: Annotated[
        str | None, typer.Option("--scales", metavar="PATH", help="Also write the scales, next to a quantized model.", hidden=True)
    ] = None,
    preparation: PreparationFlags = None,
    target: Annotated[
        str, typer.Option("--target", help="What the result is for; by default scales suit ONNX and TFLite.", autocompletion=known_targets)
    ] = "",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Processes that run it; 0 for one a core.")] = 1,
    option: OptionFlag = None,
    html: HtmlFlag = None,
    force: ForceFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    source_format: FromFlag = "",
    result_format: Annotated[str, typer.Option("--to", help="Format of the result, if its suffix does not say.", hidden=True)] = "",
    **flags: Any,
) -> None:
    """Choose the scales of a float model from data, and write them, or the quantized model; the suffix says which."""
    from qconvert.calibration.files import calibrate_file
    from qconvert.cli.reports import print_conversion, progress
    from qconvert.cli.streams import read_from, stated_path
    from qconvert.cli.viewing import pages_for

    page = pages_for(html, force=force)
    source, configured, told = _of_mnn(data, mnn_config)
    settings, writing = _split_options(flags, parse_options(option or ()))
    if preparation is not None:
        settings["preparation"] = preparation
    with read_from(model, source_format) as path, progress(quiet or json) as step:
        found, written = calibrate_file(
            path, source, result, source_format=source_format, real=stated_path(real), scales=stated_path(scales),
            result_format=result_format, target=target, force=force, writing=writing, symmetric=symmetric,
            per_channel=per_channel, histograms=html is not None, jobs=jobs,
            progress=step, **{**configured, **settings},
        )  # fmt: skip
    found = replace(found, notes=(*told, *found.notes))
    page(found)
    if json:
        said = [str(change) for change in written] if isinstance(written, tuple) else asdict(written)
        print_document("calibrate", {**calibration_document(found), "result": result, "written": said})
    elif not quiet:
        print_calibration(found)
        if isinstance(written, tuple):
            for change in written:
                typer.echo(str(change))
        else:
            print_conversion(written, verbose=False)


def _split_options(flags: dict[str, Any], others: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a calibration, which are flags, with the options of its method, which are others; and the options of a conversion."""
    from qconvert.calibration.settings import setting_flags
    from qconvert.plugins.options import pick_declared

    settings = pick_declared(flags, tuple(setting_flags()))
    own = pick_declared(others, tuple(_method_options()))
    return settings | own, {name: flags[name] for name in flags.keys() - settings} | {name: others[name] for name in others.keys() - own}


def _method_options() -> Iterator[Option]:
    """The options of all methods, which -O sets."""
    from qconvert.calibration import METHODS

    return (option for method in METHODS.values() for option in method.options)


def _of_mnn(data: list[str] | None, config: Path | None) -> tuple[Data, dict[str, Any], tuple[str, ...]]:
    """The data, and what a configuration of MNN's quantizer says besides, if there is one; what the user states comes first."""
    if config is None:
        if not data:
            raise OptionError("calibration needs data", remedy="Name files or folders with --data.", rule="no-data")
        return data, {}, ()
    from qconvert.calibration.mnn_config import read_mnn_config

    found = read_mnn_config(config)
    return data or found.data, dict(found.options), found.notes


def calibration_document(found: Calibration) -> dict[str, Any]:
    """A Calibration as plain data, without its graph and histograms."""
    return {
        "samples": found.samples,
        "origin": found.encodings.origin,
        "notes": list(found.notes),
        "warnings": list(found.warnings),
        "tensors": [_tensor_document(item) for item in found.tensors],
        "sensitivity": [asdict(item) for item in found.sensitivity],
        "kept_float": list(found.kept_float),
    }


def _tensor_document(item: TensorReport) -> dict[str, Any]:
    q = item.qparams.quantization
    return {
        "names": list(item.names), "lowest": item.lowest, "highest": item.highest, "dtype": item.qparams.dtype,
        "scale": q.step, "zero_point": q.point, "sqnr_db": item.sqnr_db, "clipped": item.clipped,
        "origin": item.origin,
    }  # fmt: skip


def print_calibration(found: Calibration) -> None:
    """A table of activations with what was seen, the range that was chosen, and the noise of rounding."""
    from qconvert.tables import Rows, show

    columns = ("~tensor", ">seen", ">quantized range", ">scale", ">zero point", ">SQNR", ">clipped")
    rows = []
    for item in found.tensors:
        q, (low, high) = item.qparams.quantization, item.range
        seen = "" if item.lowest == item.highest == 0 else f"{item.lowest:.5g} to {item.highest:.5g}"
        noise = "" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB"
        clipped = f"{100 * item.clipped:.3g}%" if item.clipped else ""
        chosen = (f"{low:.5g} to {high:.5g}", f"{q.step:.6g}", str(q.point))
        rows.append((_shorten_names(item.names), seen, *chosen, noise, clipped))
    show(Rows(f"{found.encodings.origin}, {found.tensors[0].qparams.dtype}", columns, tuple(rows)))
    if found.sensitivity:
        show(_sensitivity_table(found))
    for note in found.notes:
        show(f"note: {note}")
    for warning in found.warnings:
        show(f"warning: {warning}")
    constants = sum(place.name in found.graph.tensors and found.graph[place.name].is_constant for place in found.encodings.entries)
    show(f"scales of {len(found.encodings) - constants} activations and {constants} constants")


def _sensitivity_table(found: Calibration) -> Rows:
    """What quantizing each tensor by itself costs, the worst first."""
    from qconvert.tables import Rows

    rows = []
    for item in found.sensitivity[:_MOST]:
        noise = "exact" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB"
        rows.append((_shorten_names(item.names), noise, "stays float" if item.names[0] in found.kept_float else ""))
    return Rows("Sensitivity", ("~quantized by itself", ">SQNR of the outputs", ""), tuple(rows))


def _shorten_names(names: tuple[str, ...]) -> str:
    from qconvert.tables import format_text

    return format_text(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def add_calibration_commands(app: typer.Typer, source_format: str = "", result_format: str = "") -> None:
    """Add `calibrate`, with the options of a conversion.

    Args:
        app: the program.
        source_format, result_format: what the command line says of them, "" for nothing.
    """

    def list_flags() -> dict[Option, str | None]:
        from qconvert.calibration.settings import setting_flags

        options = conversion_flags(source_format, result_format)
        shown = {option: heading if heading != "Options" else None for option, heading in options.items() if option.name != "encodings"}
        return setting_flags() | shown

    app.command("calibrate")(with_flags(_calibrate, list_flags, before="symmetric", settings=_method_options))
