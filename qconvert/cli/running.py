"""The command `run`: a model in its own runtime, its tensors in an .npz file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from qconvert.cli.documents import print_document
from qconvert.cli.flags import (
    CropFlag,
    DebugFlag,
    ForceFlag,
    FromFlag,
    JsonFlag,
    KernelsFlag,
    MeanFlag,
    ModelArgument,
    PixelRangeFlag,
    QuietFlag,
    ResizeFlag,
    SeedFlag,
    StdFlag,
)
from qconvert.cli.preparation_options import preparation_of
from qconvert.errors import OptionError, format_count

__all__ = ["add_run_command"]


def _run(
    model: ModelArgument,
    inputs: Annotated[
        list[str] | None, typer.Option("--inputs", help="Inputs: folders or files, .npz, .npy, .bin, images; repeatable. Default: random.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .npz file to write the tensors to.")] = None,
    save: Annotated[list[str] | None, typer.Option("--save", help="An inner tensor to give out too, by its name; repeatable.")] = None,
    save_all: Annotated[bool, typer.Option("--save-all", help="Give out every inner tensor.")] = False,
    dequantized: Annotated[bool, typer.Option("--dequantize", help="Give out floats instead of stored integers.")] = False,
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="How many inputs to run at most; of more than one, arrays get a first axis for them.")
    ] = 1,
    mean: MeanFlag = None,
    std: StdFlag = None,
    pixel_range: PixelRangeFlag = None,
    resize: ResizeFlag = None,
    crop: CropFlag = None,
    kernels: KernelsFlag = None,
    seed: SeedFlag = 0,
    force: ForceFlag = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    source_format: FromFlag = "",
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Run a model in its own runtime: its outputs, and any inner tensor, in a table and an .npz file."""
    import numpy as np

    from qconvert.checking.running import run_files
    from qconvert.cli.streams import read_from
    from qconvert.files import require_writable, whole_file
    from qconvert.tables import Rows, show

    if output is not None and output.suffix != ".npz":
        raise OptionError(f"the file of tensors is {output.name!r}; it ends in .npz", rule="not-npz", file=str(output))
    if output is not None:
        require_writable(output, force=force, reads=[model])
    prepared = preparation_of(mean=mean, std=std, pixel_range=pixel_range, resize=resize, crop=crop)
    with read_from(model, source_format) as path:
        runs, notes, ran = run_files(
            path, inputs or (), preparation=prepared, samples=samples, tensors=save or (), every=save_all, dequantized=dequantized,
            format=source_format, kernels=kernels or (), seed=seed, **options,
        )  # fmt: skip
    arrays = {name: value if len(runs) == 1 else np.stack([one[name] for one in runs]) for name, value in runs[0].items()}
    if output is not None:
        with whole_file(output, force=force, reads=[model]) as place:
            _save(arrays, place)
    document: list[dict[str, Any]] = [
        {"name": name, "dtype": str(value.dtype), "shape": list(value.shape), **_ends(value)} for name, value in arrays.items()
    ]
    if json:
        print_document("run", {"ran": ran, "inputs": len(runs), "tensors": document, "notes": list(notes)})
    elif not quiet:
        rows = [
            (item["name"], item["dtype"], ",".join(map(str, item["shape"])), *map(_number, (item["min"], item["max"], item["mean"])))
            for item in document
        ]
        show(Rows(f"{format_count(len(runs), 'input')}, {ran}", ("~tensor", "type", "shape", ">min", ">max", ">mean"), tuple(rows)))
        show(*(f"note: {text}" for text in notes), *([f"written: {output}"] if output is not None else []))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _save(arrays: Mapping[str, Any], path: Path) -> None:
    """Write arrays by name as numpy.load() reads them; numpy.savez() takes no array of the name "file"."""
    import zipfile

    import numpy as np

    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(value), allow_pickle=False)


def _ends(value: Any) -> dict[str, float | None]:
    """Smallest, largest and mean element; None of an empty array, of what is no number, and where an element is not finite."""
    found: dict[str, float | None] = dict.fromkeys(("min", "max", "mean"))
    if value.size and value.dtype.kind in "iufb":
        ends = {"min": float(value.min()), "max": float(value.max()), "mean": float(value.mean())}
        found |= {name: one for name, one in ends.items() if math.isfinite(one)}
    return found


def add_run_command(app: typer.Typer) -> None:
    """Adds `run` to the program."""
    app.command("run")(_run)
