"""check(): source and result run in their own runtimes, and a verdict: passed, not equal, or inconclusive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from qconvert.arguments import Progress, no_progress, with_checked_arguments
from qconvert.checking.adapted_files import Around, cut_around_custom, write_adapted_copy
from qconvert.checking.file_in_runtime import Side, sides_of
from qconvert.checking.findings import CheckReport
from qconvert.checking.proof.classes import Proof
from qconvert.checking.side_check import Demands, SideCheck
from qconvert.checking.stand_ins import StandIn, find_stand_in, quantize_source
from qconvert.conversion.in_memory import Model, as_files, model_title
from qconvert.data import Preparation
from qconvert.data.samples import require_readable, require_samples
from qconvert.data.texts import are_texts
from qconvert.errors import MissingPackageError, OptionError, RuntimeRefusedError
from qconvert.files.system import temporary_folder
from qconvert.plugins.options import ReadOptions


@with_checked_arguments
def check(
    source: Model,
    result: Model,
    *,
    source_format: str = "",
    result_format: str = "",
    data: Sequence[str | Path] = (),
    preparation: Preparation | None = None,
    samples: int = 5,
    kernels: str | Sequence[str] = (),
    per_op: bool = False,
    quick: bool = False,
    max_lsb: float | None = None,
    min_sqnr: float | None = None,
    seed: int = 0,
    encodings: str | Path = "",
    progress: Progress = no_progress,
    **options: Unpack[ReadOptions],
) -> CheckReport:
    """Compares a source model and its conversion, and gives a verdict.

    It passes if the outputs are equal in every element and the integers, scales and zero points are the source's, but for those that the
    conversion declared; or if every operator that differs is explained, and the outputs keep `min_sqnr`. The verdict is "as declared" where
    outputs differ by the cost of passes that the user named. Operators are compared by themselves if the outputs differ or
    hardly vary with the inputs, or if an integer, scale or zero point is neither the source's nor declared.

    What can be proved for all inputs is proved, too (see prove()): outputs that differ although they are proved equal are a problem.

    Args:
        source: a model file of a format that a runtime loads, its content as bytes, or a graph, of which a file is written.
        result: the converted model, likewise.
        source_format, result_format: the names of their formats, if suffix and content do not determine them.
        data: files and folders of inputs (see qconvert/data), or .txt files, texts of which a language model's inputs are made by the
            tokenizer.json next to a model; random inputs without.
        preparation: of images and floats in these.
        samples: how many inputs at most; of a model with states, how many sequences of 50.
        kernels: what runs files of a format, on both sides: "litert:default" (XNNPACK), "litert:reference", "tflite-micro" (the extra
            `micro`), "onnxruntime:optimized", "onnxruntime:unoptimized" (without optimizations), or a plugin's; several in a list.
            Of two that run the format of both files the first runs the source.
        per_op: whether operators are compared in any case.
        quick: whether outputs alone are judged, by max_lsb.
        max_lsb: largest difference allowed at the outputs, in LSB, or for float outputs in 1/255 of the range; with `quick` 1 by default,
            without it a further demand, none by default.
        min_sqnr: signal to difference, in decibels, that an output which differs keeps at least: by default 30, of a quantized model next
            to its float source 10. An output off by at most 2 steps holds, and so does one that is nearly all zero and off by at most 8.
            With `quick` a further demand, none by default.
        seed: of random inputs.
        encodings: a file of scales with which the source is quantized first, where the result was made with them.
        progress: is called with (what, done, total).
        options: of the readers of both formats, such as input_shape; what both take is meant for the source. What is not given for the
            source is what the result's metadata say of its conversion.

    Returns:
        The report; where no runtime takes a model, or no package of one is installed, its verdict is "inconclusive".

    Raises:
        QConvertError: a file cannot be read, or the inputs do not fit.
    """
    require_samples(samples)
    if max_lsb is not None and not max_lsb >= 0:  # NaN is neither
        raise OptionError(
            f"max_lsb is {max_lsb}; it must be at least 0", remedy="Give a number of steps, such as 1.", rule="tolerance-negative"
        )
    if preparation is not None and not data:
        raise OptionError(
            "the data are arrays; only data from files is prepared", remedy="Name files or folders with --data.", rule="data-not-from-files"
        )
    texts = are_texts(data)
    if data and not texts:
        require_readable(data)
    if texts and preparation is not None:
        raise OptionError(
            "the data are texts, which no preparation is for", remedy="Leave out --mean, --std and the like.", rule="option-not-applicable"
        )
    if quick and per_op:
        raise OptionError("both --quick and --per-op are given", remedy="Leave out --quick or --per-op.", rule="quick-and-per-op")
    with as_files(source, result, (source_format, result_format)) as (files, formats):
        demands = Demands(data, preparation or Preparation(), samples, seed, per_op, quick, max_lsb, min_sqnr)
        found = _check_files(files, formats, kernels, Path(encodings) if encodings else None, options, progress, demands)
    return replace(found, source=model_title(source), result=model_title(result))


def _add_proof(found: CheckReport, proof: Proof) -> CheckReport:
    """The report with what is proved for all inputs: no run may contradict it, and what differs is a problem that no run has to show."""
    differing = [item.name for item in found.outputs if item.differs] if proof.equal_for_all_inputs else []
    fault = "what qconvert knows of a kernel is wrong (please report it)"
    wrong = [f"output {name!r} differs although it is proved equal: {fault}" for name in differing]
    problems = list(found.problems)
    for text in proof.faults:
        operator, _, words = text.partition(": ")
        place = next((place for place, known in enumerate(problems) if known.startswith(f"{operator}:")), None)
        if place is None:
            problems.append(text)
        else:
            problems[place] = f"{problems[place]}; {words}"
    return replace(found, proof=proof, problems=(*problems, *wrong))


def _check_files(
    files: tuple[Path, Path],
    formats: tuple[str, str],
    kernels: str | Sequence[str],
    scales: Path | None,
    options: Mapping[str, Any],
    progress: Progress,
    demands: Demands,
) -> CheckReport:
    """The check of two files."""
    from qconvert.checking.proof.proving import prove_sides

    try:
        named, note = sides_of(*files, kernels, options, formats)
        with temporary_folder() as folder:
            sides = named
            copy = write_adapted_copy(named[0], Path(folder), demands.seed) if scales is None else None
            if scales is not None:
                sides = quantize_source(*named, scales, Path(folder), kernels), named[1]
            elif copy is not None:
                sides = copy.side, named[1]
            stand = find_stand_in(*sides) if sides[1].format.read is None else StandIn(sides[1])
            sides = sides[0], stand.side
            whole = next((side.runtime for side in sides if side.runtime.whole), None)
            if whole is not None and demands.per_op:
                raise OptionError(
                    f"{whole.title} returns no inner tensors; --per-op requires them",
                    remedy="Use --per-op with --kernels litert:default.",
                    rule="no-inner-tensors",
                )
            around, proof = cut_around_custom(sides, Path(folder)), prove_sides((named[0], sides[1]))
            if around is None:
                read = (named[0], sides[1]) if scales is not None or copy is not None else sides
                found = SideCheck(
                    sides, demands, bool(kernels), progress, read, note, proof, scales, notes=list(stand.notes), altered=stand.altered
                )
                if copy is not None:
                    found.notes += copy.notes
                    found.problems += copy.problems
                report = found.report()
            else:
                report = _check_around_custom(around, sides, note, proof, bool(kernels), progress, demands)
            return _add_proof(report, proof)
    except (RuntimeRefusedError, MissingPackageError) as error:
        return CheckReport(str(files[0]), str(files[1]), 0, (), (), (), (error.sentence,))


def _check_around_custom(
    around: Around, sides: tuple[Side, Side], note: str, proof: Proof, chosen: bool, progress: Progress, demands: Demands
) -> CheckReport:
    """The check of what is around custom operators, with what is said of these."""
    source, result = (str(side.path) for side in sides)
    nothing = CheckReport(source, result, 0, (), (), around.problems, (around.unjudged,))
    if around.sides is None:
        return nothing
    try:
        found = SideCheck(around.sides, demands, chosen, progress, sides, note, proof).report()
    except (RuntimeRefusedError, MissingPackageError) as error:
        return replace(nothing, unjudged=(around.unjudged, error.sentence))
    given = around.sides[0].graph.inputs
    other = [item.name for item in found.outputs if item.differs and item.name in given]  # no operator stands between that would explain it
    said = [f"a custom operator or an output reads {name!r}, which is another tensor in the result" for name in other]
    problems = tuple(dict.fromkeys((*around.problems, *found.problems, *said)))
    return replace(found, source=source, result=result, problems=problems, unjudged=(around.unjudged, *found.unjudged))
