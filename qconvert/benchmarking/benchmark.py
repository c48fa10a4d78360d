"""benchmark(): model files side by side, each in a process of its own that process.py runs; see there."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.benchmarking.report import BenchmarkReport, Measured
from qconvert.conversion import convert, load
from qconvert.conversion.loading import source_format
from qconvert.data import random_inputs
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Array, canonical_dtype
from qconvert.plugins import Format, Target, format_named, runtimes, target_named
from qconvert.plugins.host import loaded
from qconvert.plugins.option_types import ReadOptions
from qconvert.plugins.options import checked
from qconvert.plugins.registry import kernels_listed
from qconvert.runtimes.child import Child

__all__ = ["benchmark"]

_PROCESS = Path(__file__).with_name("process.py")
#: Seconds for which an answer of a process is waited for.
_PATIENCE = 600.0
#: How often each file has its turn.
_TURNS = 10
#: The fewest runs in a turn's time, however long one takes.
_FEWEST = 3


@dataclass(slots=True)
class _Runner:
    """A file in a runtime, in its process."""

    found: Measured
    child: Child
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def runs(self, times: int) -> None:
        """So many runs more."""
        answer = self.child.asked({"times": times})
        if "refused" in answer:
            raise RuntimeRefusedError(str(answer["refused"]), rule="run-failed")
        self.wall += answer["wall"]
        self.processor += answer["processor"]
        self.found = replace(self.found, memory=max(self.found.memory, int(answer["memory"])))

    def measured(self) -> Measured:
        return replace(
            self.found, runs=len(self.wall), median=statistics.median(self.wall), best=min(self.wall),
            processor=statistics.median(self.processor),
        )  # fmt: skip


@with_checked_arguments
def benchmark(
    model: str | Path,
    results: Sequence[str | Path] = (),
    *,
    targets: Sequence[str] = (),
    kernels: str | Sequence[str] = (),
    runs: int = 50,
    seconds: float = 10.0,
    threads: int = 1,
    seed: int = 0,
    format: str = "",
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    **options: Unpack[ReadOptions],
) -> BenchmarkReport:
    """Measure how long a model and others made of it take in their runtimes, side by side.

    Each file runs in each runtime in a process of its own. They take turns, so that what else the machine does hits all alike; nothing
    else should run on it. Inputs are random.

    Args:
        model: a model file.
        results: others, such as conversions of it.
        targets: names of targets that the model is converted for, in a temporary folder; the results are measured too.
        kernels: what runs the files, such as "litert:reference"; by default each installed runtime with its own default, and of a
            conversion that of its target.
        runs: how many runs of each are measured.
        seconds: about how long each may take; slow models have fewer runs, at least 3.
        threads: how many a runtime may use; 0 for as many as it likes.
        seed: of the random inputs.
        format: the name of the model's format, where its suffix does not say it.
        progress: is called with (what, done, total).
        options: of the readers, such as input_shape.

    Returns:
        What was measured, and what could not be, in the order of the files; targets that refuse the model come last.

    Raises:
        OptionError: a number, a target, kernels or an option do not exist.
        RuntimeRefusedError: nothing could be measured.
        QConvertError: a file cannot be read.
    """
    if runs < 1 or threads < 0 or not seconds > 0:
        raise OptionError(
            f"{runs} runs, {threads} threads, {seconds} s: at least 1 run, 0 threads and more than 0 s are needed",
            rule="number-out-of-range",
        )
    with ExitStack() as stack:
        files = [(Path(model), "", format), *((Path(item), "", "") for item in results)]
        given = [source_format(path, stated) for path, _, stated in files]
        declared = {option.name: option for item in given for option in item.read_options}
        read = checked(options, declared.values(), "nothing that reads these files")
        folder, refused = stack.enter_context(temporary_folder()), list[Measured]()
        for number, target in enumerate([target_named(name) for name in dict.fromkeys(targets)]):
            progress("converting", number, len(targets))
            try:
                files.append((_converted(files[0], target, folder, _own(read, given[0])), target.name, ""))
            except QConvertError as error:
                refused.append(Measured(str(model), target.name, target.name, problem=error.reason))
        found = [*_measured(files, kernels, (runs, seconds, threads, seed), read, progress, stack), *refused]
    named = [replace(item, file=str(model)) if item.target else item for item in found]
    report = BenchmarkReport(tuple(named), _machine(), threads)
    if not report.done:
        reasons = "; ".join(dict.fromkeys(f"{item.kernels}: {item.problem}" for item in found)) or "no runtime of the format is installed"
        raise RuntimeRefusedError(f"nothing could be measured: {reasons}", file=str(model), rule="nothing-measured")
    return report


def _converted(source: tuple[Path, str, str], target: Target, folder: Path, options: Mapping[str, Any]) -> Path:
    """The model's conversion for a target, in a folder of its own."""
    writer = format_named(target.format)
    place = folder / target.name / f"{source[0].stem}{writer.suffix_for(target.write_options)}"
    place.parent.mkdir()
    convert(source[0], place, source_format=source[2], target=target.name, **options)
    return place


def _measured(
    files: Sequence[tuple[Path, str, str]],
    kernels: str | Sequence[str],
    numbers: tuple[int, float, int, int],
    options: Mapping[str, Any],
    progress: Callable[[str, int, int], None],
    stack: ExitStack,
) -> Iterator[Measured]:
    """What is found of each file in each of its runtimes."""
    runs, seconds, threads, seed = numbers
    started: list[_Runner | Measured] = []
    for number, (path, target, stated) in enumerate(files):
        progress("loading", number, len(files))
        format = source_format(path, stated)
        own = _own(options, format) if not target else {}
        inputs = random_inputs(load(path, format.name, **own), 1, seed)[0] if format.read is not None else None
        size = sum(item.stat().st_size for item in (path, *(format.companions(path) if format.companions else ())))
        for chosen in _kernels(format, target, kernels):
            runner = _started(Measured(str(path), chosen, target, file_bytes=size), format, inputs, own, threads)
            if isinstance(runner, _Runner):
                stack.callback(runner.child.close)
            started += [runner] if runner is not None else []
    for turn in range(_TURNS):
        progress("running", turn, _TURNS)
        for place, runner in enumerate(started):
            if isinstance(runner, Measured):
                continue
            left, used = runs - len(runner.wall), sum(runner.wall)
            if left < 1 or (used > seconds and len(runner.wall) >= _FEWEST):
                continue
            usual = statistics.median(runner.wall) if runner.wall else runner.found.first
            in_time = max(1, int((seconds - used) / (_TURNS - turn) / max(usual, 1e-9)))
            try:
                runner.runs(min(-(-left // (_TURNS - turn)), in_time))
            except QConvertError as error:
                started[place] = replace(runner.found, problem=error.reason)
    for runner in started:
        yield runner if isinstance(runner, Measured) else runner.measured()


def _started(
    found: Measured, format: Format, inputs: Mapping[str, Array] | None, options: Mapping[str, Any], threads: int
) -> _Runner | Measured | None:
    """A file that is loaded in its runtime, or why it is not; None where the runtime is not installed and nobody named it."""
    plugins = [item.origin for item in loaded() if item.origin.endswith(".py") and os.path.isfile(item.origin)]
    question = {
        "path": os.path.abspath(found.file), "format": format.name, "kernels": found.kernels, "threads": threads, "plugins": plugins,
        "random": inputs is None,
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
    }  # fmt: skip
    described = {name: [canonical_dtype(value.dtype), list(value.shape)] for name, value in (inputs or {}).items()}
    title = runtimes()[found.kernels.partition(":")[0]].title
    child = Child(_PROCESS, title, _PATIENCE, [str(Path(__file__).parents[2])])
    try:
        answer = child.asked({"load": question, "inputs": described}, [*(inputs or {}).values()])
    except RuntimeRefusedError as error:
        return replace(found, problem=error.reason)
    if "refused" not in answer:
        return _Runner(replace(found, ran=str(answer["ran"]), note=str(answer["note"]), first=float(answer["first"])), child)
    child.close()
    return None if answer["missing"] else replace(found, problem=str(answer["refused"]))


def _own(options: Mapping[str, Any], format: Format) -> dict[str, Any]:
    """Those of the options that a format's reader takes."""
    return {name: value for name, value in options.items() if any(name == option.name for option in format.read_options)}


def _kernels(format: Format, target: str, named: str | Sequence[str]) -> list[str]:
    """What runs a file: what the user names for its format, or else what the target is for, or each runtime by its default."""
    listed = [f"{runtime.name}:{chosen}" for runtime, chosen in kernels_listed(named) if format.name in runtime.formats]
    fitting = [runtime for runtime in runtimes().values() if format.name in runtime.formats]
    if target:  # "tflite-micro" and "tensorrt-rtx" are called as what runs them; others are for the first runtime of the format
        own = [runtime for runtime in fitting if runtime.name in (target, target.partition("-")[0])]
        fitting = sorted(own, key=lambda runtime: runtime.name != target)[:1] or fitting[:1]
    return listed or [f"{runtime.name}:{runtime.kernels[0]}" for runtime in fitting]


def _machine() -> str:
    """The processor, and how many of it this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name}, {count} processors"
