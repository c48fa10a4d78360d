"""The command `calibrate`: a float model and data in, scales or a quantized model out."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.cli.completion import known_formats, known_targets
from qconvert.cli.flags import with_flags
from qconvert.cli.names import shortened
from qconvert.cli.preparing import preparation_of
from qconvert.plugins import declared_options
from qconvert.plugins.options import parsed

if TYPE_CHECKING:
    from qconvert.calibration.driver import Calibration, TensorReport

__all__ = ["add_calibration_commands"]

#: Of a tensor's name in the table.
_LONGEST = 48


def _calibrate(
    model: Annotated[Path, typer.Argument(help="The float model to read.")],
    data: Annotated[list[str], typer.Option("--data", help="A folder or files: images, .npy, .npz, .bin; repeatable.")],
    result: Annotated[Path, typer.Option("--output", "-o", help="Scales (scales.json) or a quantized model (q.onnx, q.tflite …).")],
    method: Annotated[str, typer.Option("--method", help="How ranges are chosen; docs/calibration.md has the methods.")] = "",
    method_option: Annotated[
        list[str] | None, typer.Option("--method-option", metavar="NAME=VALUE", help="An option of the method; repeatable.")
    ] = None,
    activations: Annotated[str, typer.Option("--activations", help="Storage type of activations: int8, uint8, int16.")] = "int8",
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric/--affine", help="Whether zero points of activations are in the middle.")
    ] = None,
    weights: Annotated[str, typer.Option("--weights", help="Storage type of weights: int8, int4.")] = "int8",
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="A scale for each output channel of weights, or one.")
    ] = True,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many inputs at most; by default all.")] = None,
    mean: Annotated[str | None, typer.Option("--mean", help="Taken from images and real numbers: one number, or one a channel.")] = None,
    std: Annotated[str | None, typer.Option("--std", help="What they are then divided by: one number, or one a channel.")] = None,
    range_: Annotated[str | None, typer.Option("--range", help="What pixels 0 and 255 become before that, such as 0,1.")] = None,
    resize: Annotated[str | None, typer.Option("--resize", help="Of images: stretch, SHORTER or HEIGHT,WIDTH.")] = None,
    crop: Annotated[str | None, typer.Option("--crop", help="Of images, behind resizing: HEIGHT,WIDTH of the middle.")] = None,
    colour: Annotated[str, typer.Option("--colour", help="Of images: rgb, bgr, gray, rgba, bgra.")] = "",
    layout: Annotated[str, typer.Option("--layout", help="Of images: nchw or nhwc; by default what the input's shape says.")] = "",
    target: Annotated[
        str, typer.Option("--target", help="What the result is for; by default scales suit ONNX and TFLite.", autocompletion=known_targets)
    ] = "",
    runtime: Annotated[str, typer.Option("--runtime", help="What runs the model: onnxruntime or litert.")] = "onnxruntime",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Processes that run it; 0 for one a core.")] = 1,
    scheduler: Annotated[str, typer.Option("--scheduler", help="Address of a dask.distributed scheduler whose workers run it.")] = "",
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a result that exists.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    result_format: Annotated[
        str, typer.Option("--to", help="The result's format, if not its suffix's.", autocompletion=known_formats)
    ] = "",
    **writing: Any,
) -> None:
    """Choose the scales of a float model from data, and write them, or the quantized model; the suffix says which."""
    from qconvert.calibration.files import calibrate_file
    from qconvert.cli.reports import conversion_document, print_conversion, progress

    preparation = preparation_of(mean=mean, std=std, range=range_, resize=resize, crop=crop, colour=colour, layout=layout)
    own = parsed(method_option or ())
    choices: dict[str, Any] = {"method": method} if method else {}
    with progress(quiet or json) as step:
        found, written = calibrate_file(
            model, data, result, result_format=result_format, target=target, force=force, writing=writing, preparation=preparation,
            activations=activations, symmetric=symmetric, weights=weights, per_channel=per_channel, samples=samples, runtime=runtime,
            jobs=jobs, scheduler=scheduler, progress=step, **choices, **own,
        )  # fmt: skip
    if json:
        said = [str(change) for change in written] if isinstance(written, tuple) else conversion_document(written)
        typer.echo(json_module.dumps({**calibration_document(found), "result": str(result), "written": said}, indent=2))
    elif not quiet:
        print_calibration(found)
        if not isinstance(written, tuple):
            print_conversion(written, verbose=False)


def calibration_document(found: Calibration) -> dict[str, Any]:
    """A Calibration as plain data, without its graph and histograms."""
    return {
        "samples": found.samples,
        "origin": found.encodings.origin,
        "notes": list(found.notes),
        "tensors": [_tensor_document(item) for item in found.tensors],
        "weights": len(found.encodings) - sum(len(item.names) for item in found.tensors),
    }


def _tensor_document(item: TensorReport) -> dict[str, Any]:
    q = item.grid.quantization
    return {
        "names": list(item.names), "lowest": item.lowest, "highest": item.highest, "dtype": item.grid.dtype,
        "scale": float(q.scale[0]), "zero_point": int(q.zero_point[0]), "sqnr_db": item.sqnr_db, "clipped": item.clipped,
        "origin": item.origin,
    }  # fmt: skip


def print_calibration(found: Calibration) -> None:
    """A table of activations with what was seen, the range that was chosen, and the noise of rounding."""
    from qconvert.cli.reports import _print, _table

    columns = ("tensor", ">seen", ">range of the grid", ">scale", ">zero point", ">SQNR", ">beyond")
    table = _table(*columns, title=f"{found.encodings.origin}, {found.tensors[0].grid.dtype}")
    for item in found.tensors:
        q, (low, high) = item.grid.quantization, item.range
        more = f" and {len(item.names) - 1} more" if len(item.names) > 1 else ""
        seen = "" if item.lowest == item.highest == 0 else f"{item.lowest:.5g} to {item.highest:.5g}"
        noise = "" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB"
        beyond = f"{100 * item.clipped:.3g}%" if item.clipped else ""
        chosen = (f"{low:.5g} to {high:.5g}", f"{float(q.scale[0]):.6g}", str(int(q.zero_point[0])))
        table.add_row(shortened(item.names[0], _LONGEST) + more, seen, *chosen, noise, beyond)
    _print(table)
    for note in found.notes:
        _print(f"note: {note}")
    activations = sum(len(item.names) for item in found.tensors)
    _print(f"grids of {activations} activations and {len(found.encodings) - activations} weights")


def add_calibration_commands(app: typer.Typer) -> None:
    """Adds `calibrate`, with the options of passes and writers."""
    options = [option for option in declared_options().values() if option.name not in ("encodings",)]
    app.command("calibrate")(with_flags(_calibrate, options, before="force"))
