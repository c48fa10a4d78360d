"""The commands that run models: `run`, a model in its own runtime, its tensors in an .npz file; `accuracy`, top-1 and top-5 of source and
result on labelled inputs; and `benchmark`, how long files take in their runtimes, side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.cli.flags import (
    DataFlag,
    DebugFlag,
    ForceFlag,
    FromFlag,
    HtmlFlag,
    JsonFlag,
    KernelsFlag,
    ModelArgument,
    PreparationFlags,
    QuietFlag,
    SeedFlag,
    ToFlag,
    known_targets,
)
from qconvert.cli.outcome import NOT_EQUAL, print_document
from qconvert.errors import OptionError, format_count

if TYPE_CHECKING:
    from qconvert.checking.accuracy import Accuracy, Share


def run_command(
    model: ModelArgument,
    data: DataFlag = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .npz file to write the tensors to.")] = None,
    save: Annotated[list[str] | None, typer.Option("--save", help="An inner tensor to give out too, by its name; repeatable.")] = None,
    save_all: Annotated[bool, typer.Option("--save-all", help="Give out every inner tensor.")] = False,
    dequantized: Annotated[bool, typer.Option("--dequantize", help="Give out floats instead of stored integers.")] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", min=1, help="How many inputs to run at most; by default all of --data. Of several, arrays get a first axis."
        ),
    ] = None,
    preparation: PreparationFlags = None,
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

    from qconvert.checking.file_in_runtime import run_files
    from qconvert.cli.streams import read_from
    from qconvert.files import require_writable, whole_file
    from qconvert.tables import Rows, show

    if output is not None and output.suffix != ".npz":
        raise OptionError(f"the suffix is {output.suffix!r}; a file of tensors requires .npz", rule="not-npz", file=str(output))
    if output is not None:
        require_writable(output, force=force, reads=[model])
    with read_from(model, source_format) as path:
        runs, notes, ran = run_files(
            path, data or (), preparation=preparation, samples=samples, tensors=save or (), every=save_all, dequantized=dequantized,
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


#: Inputs that changed class, as many are listed.
_MOST = 40


def accuracy_command(
    source: ModelArgument,
    result: Annotated[Path, typer.Argument(help="The converted model; one of both may be -, with --from or --to.")],
    data: Annotated[str, typer.Option("--data", help="A folder of images or arrays, or one file of arrays.")],
    labels: Annotated[
        str, typer.Option("--labels", help="A list of files of --data with labels; by default --data has a folder for each class.")
    ] = "",
    class_names: Annotated[Path | None, typer.Option("--class-names", help="A file with the name of a class in each line.")] = None,
    label_offset: Annotated[int, typer.Option("--label-offset", help="Added to labels: 1 if class 0 is the background.")] = 0,
    scores: Annotated[str, typer.Option("--scores", help="The output that has the scores, of a model with several.")] = "",
    max_drop: Annotated[
        float, typer.Option("--max-drop", metavar="PERCENT", min=0, help="How much of top-1 may be lost before the exit code is 1.")
    ] = 1.0,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many inputs to run at most; by default all.")] = None,
    preparation: PreparationFlags = None,
    kernels: KernelsFlag = None,
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Compare the accuracy of source and result on labelled inputs. Exit code 1 if the result loses more than --max-drop of top-1."""
    from qconvert import accuracy
    from qconvert.cli.reports import progress
    from qconvert.cli.streams import read_both
    from qconvert.tables import show

    if not max_drop >= 0:  # NaN
        raise OptionError("--max-drop is no number", remedy="Give per cent, such as 1.", rule="not-a-number")
    with read_both(source, result, source_format, result_format) as (first, second), progress(quiet or json) as step:
        found = accuracy(
            first, second, data, labels, scores=scores, label_offset=label_offset,
            class_names=class_names or "", source_format=source_format, result_format=result_format, preparation=preparation,
            samples=samples, kernels=kernels or (), progress=step, **options,
        )  # fmt: skip
    lost = -100 * found.difference
    passed = lost <= max_drop
    change = "gains" if lost < 0 else "loses"
    verdict = f"{'passed' if passed else 'failed'}: the result {change} {abs(lost):.3g}% of top-1; --max-drop allows {max_drop:g}%"
    if json:
        print_document("accuracy", {**accuracy_document(found), "verdict": verdict, "passed": passed})
    elif not quiet:
        show(verdict)
        print_accuracy(found)
    if not passed:
        raise typer.Exit(NOT_EQUAL)


def accuracy_document(found: Accuracy) -> dict[str, Any]:
    """An Accuracy as plain data."""
    shares = {
        name: [_share_document(item) for item in pair] for name, pair in (("top1", found.top1), ("top5", found.top5)) if pair is not None
    }
    return {**asdict(found), **shares, "difference": found.difference, "interval": list(found.interval)}


def _share_document(item: Share) -> dict[str, Any]:
    return {"hits": item.hits, "total": item.total, "share": item.value, "interval": list(item.interval)}


def print_accuracy(found: Accuracy) -> None:
    """Shares with their intervals, the difference, and the inputs that changed class."""
    from qconvert.tables import show

    shares, changed, _ = found.tables()
    show(shares, *(f"note: {note}" for note in found.notes), found.sentence)
    if changed.rows:
        show(replace(changed, title="", rows=changed.rows[:_MOST]))
        if len(changed.rows) > _MOST:
            show(f"… and {len(changed.rows) - _MOST} more; --json has them all")


def benchmark_command(
    model: ModelArgument,
    results: Annotated[list[Path] | None, typer.Argument(help="Further files, such as conversions of the model.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="A target to convert the model for and to measure; repeatable.", autocompletion=known_targets),
    ] = None,
    kernels: KernelsFlag = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many runs of each are measured.")] = 50,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="About how long each may take; slow ones have fewer runs.")] = 10.0,
    threads: Annotated[int, typer.Option("--threads", min=0, help="How many a runtime may use; 0 for as many as it likes.")] = 1,
    seed: SeedFlag = 0,
    source_format: FromFlag = "",
    html: HtmlFlag = None,
    force: ForceFlag = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Measure how long a model, other files and its conversions take in their runtimes: each in a process of its own, in turns."""
    from qconvert import benchmark
    from qconvert.cli.reports import progress
    from qconvert.cli.streams import read_from
    from qconvert.cli.viewing import pages_for
    from qconvert.tables import show

    page = pages_for(html, force=force)
    with read_from(model, source_format) as path, progress(quiet or json) as step:
        found = benchmark(
            path, results or (), targets=target or (), kernels=kernels or (), runs=runs, seconds=seconds, threads=threads, seed=seed,
            format=source_format, progress=step, **options,
        )  # fmt: skip
    page(found)
    if json:
        print_document("benchmark", asdict(found))
    elif not quiet:
        show(found.sentence, *found.tables(), *(f"note: {text}" for text in found.notes))
