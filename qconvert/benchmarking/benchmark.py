"""benchmark(): model files side by side, each in a process of its own that process.py runs (see there), and what it finds."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from qconvert.arguments import Progress, no_progress, with_checked_arguments
from qconvert.conversion import convert, load
from qconvert.conversion.loading import source_format
from qconvert.data import random_inputs
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError
from qconvert.files.system import temporary_folder
from qconvert.plugins import format_named, list_kernels, runtime_of, runtimes, runtimes_of_target, target_named
from qconvert.plugins.host import list_plugins
from qconvert.plugins.options import ReadOptions, check_options, pick_declared
from qconvert.runtimes.packages import Child
from qconvert.tables import Rows, Shown, format_sentence, format_text, shorten_text

_COLUMNS = ("~file", "runtime", ">median ms", ">best", ">processor", ">ratio", ">first run", ">file MB", ">memory MB")
_MEGA = 1e6
#: Characters of a reason in a table.
_LONGEST = 300
#: A run that takes so many times the time of its processors waited for them, or for a device.
_WAITED = 1.5


@dataclass(frozen=True, slots=True)
class Measured:
    """A file in a runtime.

    Attributes:
        file: its path; of one that the benchmark converted, that of the model.
        target: what the benchmark converted it for; "" of a file that was there.
        kernels: what ran it, as `--kernels` names it; the target if that refuses the model; "" of a file that cannot be read.
        ran: the runtime with its version and the form of the file that ran, in words.
        runs: how many runs were measured.
        median, best: seconds that a run took.
        processor: median of the seconds in which processors worked on a run, all threads together.
        first: seconds for loading the file and its first run, with the runtime's package imported and the file read once before.
        file_bytes: size of the file and of those that belong to it.
        memory: bytes that the process held at most, beyond what it held before it loaded the file; 0 where the system does not say.
        note: what the runtime says of how it runs.
        problem: why nothing was measured; "" if it was.
        remedy: what helps against that.
    """

    file: str
    kernels: str
    target: str = ""
    ran: str = ""
    runs: int = 0
    median: float = 0.0
    best: float = 0.0
    processor: float = 0.0
    first: float = 0.0
    file_bytes: int = 0
    memory: int = 0
    note: str = ""
    problem: str = ""
    remedy: str = ""

    @property
    def name(self) -> str:
        """The file without its folder, and the target."""
        return format_text(Path(self.file).name + (f" for {self.target}" if self.target else ""))


@dataclass(frozen=True, slots=True)
class BenchmarkReport(Shown):
    """How long files took in their runtimes, all in one go.

    Attributes:
        measured: in the order in which the files were named; the first that could be measured is what the others are compared with.
        machine: the processor, and how many there are.
        threads: how many a runtime was allowed.
    """

    measured: tuple[Measured, ...]
    machine: str
    threads: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What the runtimes say of how they ran, each once, and whether runs waited."""
        found = [item.note for item in self.done if item.note]
        waited = max((item.median / max(item.processor, 1e-9) for item in self.done), default=0.0)
        if waited > _WAITED:
            found.append(
                f"runs took up to {waited:.3g} times the time in which processors worked on them: other programs use this machine, or a "
                "runtime waits for a device; on a busy machine the column processor is more reliable than the median"
            )
        return tuple(dict.fromkeys(found))

    @property
    def done(self) -> tuple[Measured, ...]:
        """What was measured."""
        return tuple(item for item in self.measured if not item.problem)

    def relative(self, item: Measured) -> float:
        """The median time of a run, the first one's being 1."""
        return item.median / self.done[0].median if self.done[0].median else 1.0

    @property
    def sentence(self) -> str:
        """The fastest one."""
        fastest = min(self.done, key=lambda item: item.median)
        text = f"fastest: {fastest.name} in {format_sentence(fastest.ran)}, {1000 * fastest.median:.3g} ms a run"
        first = self.done[0]
        return text if fastest is first else f"{text}, {self.relative(fastest):.2f} of {first.name} in {format_sentence(first.ran)}"

    def tables(self) -> Sequence[Rows]:
        """A row for each file in each runtime, and what could not be measured."""
        rows = tuple(
            (
                item.name, format_sentence(item.ran), f"{1000 * item.median:.3f}", f"{1000 * item.best:.3f}",
                f"{1000 * item.processor:.3f}",
                f"{self.relative(item):.2f}", f"{1000 * item.first:.1f}", f"{item.file_bytes / _MEGA:.2f}",
                f"{item.memory / _MEGA:.1f}" if item.memory else "",
            )
            for item in self.done
        )  # fmt: skip
        failed = tuple(
            (item.name, item.kernels, shorten_text(format_sentence(_first_line(item.problem)), _LONGEST))
            for item in self.measured
            if item.problem
        )
        threads = "1 thread" if self.threads == 1 else f"{self.threads or 'any number of'} threads"
        found = [Rows(f"{threads}, {self.machine}", _COLUMNS, rows)]
        return [*found, Rows("Not measured", ("~file", "runtime", "why"), failed)] if failed else found


def _first_line(reason: str) -> str:
    """The first line of a reason, which says what the others list."""
    return reason.partition("\n")[0].rstrip(":")


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

    def take_turn(self, runs: int, seconds: float, turns: int) -> None:
        """Run as often as one of so many turns allows that are left, of so many runs and seconds altogether."""
        left, used = runs - len(self.wall), sum(self.wall)
        if self.found.problem or left < 1 or (used > seconds and len(self.wall) >= _FEWEST):
            return
        usual = statistics.median(self.wall) if self.wall else self.found.first
        in_time = max(1, int((seconds - used) / turns / max(usual, 1e-9)))
        try:
            answer = self.child.request({"times": min(-(-left // turns), in_time)})
        except RuntimeRefusedError as error:
            answer = {"refused": error.reason}
        if "refused" in answer:
            self.found = replace(self.found, problem=str(answer["refused"]))
            return
        self.wall += answer["wall"]
        self.processor += answer["processor"]
        self.found = replace(self.found, memory=max(self.found.memory, int(answer["memory"])))

    def summarize(self) -> Measured:
        """What the turns gave."""
        if self.found.problem:
            return self.found
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
    progress: Progress = no_progress,
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
        OptionError: a number, a target, kernels or an option do not exist, or the kernels run none of the files.
        RuntimeRefusedError: nothing could be measured.
        QConvertError: the model cannot be read, or there is no file of a result.
    """
    for name, number, is_valid, rule in (
        ("runs", runs, runs >= 1, "at least 1"),
        ("threads", threads, threads >= 0, "at least 0"),
        ("seconds", seconds, seconds > 0, "above 0"),
    ):
        if not is_valid:
            raise OptionError(f"{name} is {number:g}; it must be {rule}", rule="number-out-of-range")
    with ExitStack() as stack:
        files = [_File(Path(model), format), *(_File(Path(item)) for item in results)]
        _require_files(kernels, {*(file.format.name for file in files), *(target_named(name).format for name in targets)})
        declared = {option.name: option for file in files for option in file.format.read_options}
        read = check_options(options, declared.values(), "nothing that reads these files")
        converted, refused = _conversions(files[0], targets, stack.enter_context(temporary_folder()), read, progress)
        started: list[_Runner | Measured] = []
        for number, file in enumerate([*files, *converted]):
            progress("loading", number, len(files) + len(converted))
            own = {} if file.target else pick_declared(read, file.format.read_options)
            try:
                started += _start_runners(file, kernels, own, threads, seed, stack)
            except QConvertError as error:
                if file is files[0]:
                    raise
                started.append(Measured(str(file.path), "", file.target, problem=error.reason, remedy=error.remedy))
        for turn in range(_TURNS):
            progress("running", turn, _TURNS)
            for runner in started:
                if isinstance(runner, _Runner):
                    runner.take_turn(runs, seconds, _TURNS - turn)
        found = [*(item.summarize() if isinstance(item, _Runner) else item for item in started), *refused]
    report = BenchmarkReport(tuple(replace(item, file=str(model)) if item.target else item for item in found), _machine(), threads)
    if not report.done:
        listed = dict.fromkeys(f"{item.kernels or item.name}: {_first_line(item.problem)}" for item in found)
        reasons = "; ".join(listed) or "no runtime runs the format"
        remedy = next((item.remedy for item in found if item.remedy), "")
        raise RuntimeRefusedError(f"nothing could be measured: {reasons}", file=str(model), remedy=remedy, rule="nothing-measured")
    return report


class _File:
    """A file that is measured: its format, and the target that it was converted for here, or "" if it was there."""

    def __init__(self, path: Path, stated: str = "", target: str = "") -> None:
        self.path, self.format, self.target = path, source_format(path, stated), target


def _conversions(
    source: _File, targets: Sequence[str], folder: Path, options: Mapping[str, Any], progress: Progress
) -> tuple[list[_File], list[Measured]]:
    """The model's conversions for targets, each in a folder of its own, and those that are refused."""
    files, refused = list[_File](), list[Measured]()
    for number, target in enumerate([target_named(name) for name in dict.fromkeys(targets)]):
        progress("converting", number, len(targets))
        writer = format_named(target.format)
        place = folder / target.name / f"{source.path.stem}{writer.suffix_for(target.write_options)}"
        place.parent.mkdir()
        own = pick_declared(options, source.format.read_options)
        try:
            convert(source.path, place, source_format=source.format.name, target=target.name, **own)
        except QConvertError as error:
            refused.append(Measured(str(source.path), target.name, target.name, problem=error.reason, remedy=error.remedy))
        else:
            files.append(_File(place, target=target.name))
    return files, refused


def _start_runners(
    file: _File, kernels: str | Sequence[str], options: Mapping[str, Any], threads: int, seed: int, stack: ExitStack
) -> list[_Runner | Measured]:
    """The file loaded in each of its runtimes, or why it is not."""
    inputs = random_inputs(load(file.path, file.format.name, **options), 1, seed)[0] if file.format.read is not None else {}
    described = {name: [value.dtype.name, list(value.shape)] for name, value in inputs.items()}
    question = {
        "path": os.path.abspath(file.path), "format": file.format.name, "threads": threads, "random": file.format.read is None,
        "plugins": [item.origin for item in list_plugins() if item.origin.endswith(".py") and os.path.isfile(item.origin)],
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
    }  # fmt: skip
    size = sum(item.stat().st_size for item in (file.path, *(file.format.companions(file.path) if file.format.companions else ())))
    found: list[_Runner | Measured] = []
    for chosen in _kernels(file, kernels):
        measured = Measured(str(file.path), chosen, file.target, file_bytes=size)
        title = runtimes()[chosen.partition(":")[0]].title
        child = Child(_PROCESS, title, _PATIENCE, [str(Path(__file__).parents[2])])
        stack.callback(child.close)
        try:
            answer = child.request({"load": {**question, "kernels": chosen}, "inputs": described}, [*inputs.values()])
        except RuntimeRefusedError as error:
            answer = {"refused": error.reason, "remedy": error.remedy}
        if "refused" not in answer:
            ran = replace(measured, ran=str(answer["ran"]), note=str(answer["note"]), first=float(answer["first"]))
            found.append(_Runner(ran, child))
            continue
        child.close()
        found.append(replace(measured, problem=str(answer["refused"]), remedy=str(answer.get("remedy", ""))))
    return found


def _require_files(kernels: str | Sequence[str], formats: Collection[str]) -> None:
    """Raise OptionError where kernels are named that run none of these formats."""
    for runtime, chosen in list_kernels(kernels):
        if not {*runtime.formats} & {*formats}:
            raise OptionError(
                f"the kernels {runtime.name}:{chosen} run {' and '.join(runtime.formats)}; the files are {' and '.join(sorted(formats))}",
                remedy="Name kernels of one of these formats, a file for them, or a target.",
                rule="kernels-without-file",
            )


def _kernels(file: _File, named: str | Sequence[str]) -> list[str]:
    """What runs a file: what the user names for its format, or else what its target is for, or each runtime by its default."""
    fitting = [f"{runtime.name}:{chosen}" for runtime, chosen in list_kernels(named) if file.format.name in runtime.formats]
    if not fitting and file.target:
        runtime, chosen = runtime_of(file.format.name, runtimes_of_target(target_named(file.target))[:1])
        return [f"{runtime.name}:{chosen}"]
    return fitting or [f"{item.name}:{item.kernels[0]}" for item in runtimes().values() if file.format.name in item.formats]


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
