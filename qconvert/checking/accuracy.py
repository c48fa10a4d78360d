"""accuracy(): how often source and result name the right class, over labelled inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from qconvert.arguments import Progress, no_progress, with_checked_arguments
from qconvert.checking.adapted_files import write_adapted_copy
from qconvert.checking.file_in_runtime import Side, sides_of
from qconvert.checking.outputs import Border
from qconvert.conversion.in_memory import Model, as_files, model_title
from qconvert.data import InputFiles, Preparation
from qconvert.data.labels import Labelled, read_labels
from qconvert.data.labels import class_names as read_names
from qconvert.data.samples import require_samples
from qconvert.errors import OptionError
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Graph
from qconvert.plugins.options import ReadOptions
from qconvert.rules.changed_values import declared_names
from qconvert.tables import Rows, Shown, format_sentence, format_text

#: The quantile of the normal distribution for intervals of 95%.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Share:
    """How many of all inputs, and the interval in which the share of a whole population lies with 95% confidence."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """By Wilson's score (E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927)."""
        share, n = self.value, self.total
        middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class ChangedClass:
    """An input to which source and result give different classes.

    Attributes:
        where: the file, and the row in it.
        label: the right class.
        before, after: the class that source and result name.
    """

    where: str
    label: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, repr=False)
class Accuracy(Shown):
    """What accuracy() found.

    Attributes:
        source, result: the files.
        output: the source's name of the output that has the scores.
        kernels: what ran the source, and what the result.
        top1, top5: of source and result; top5 is None for fewer than 6 classes.
        gained, lost: inputs on which the result alone is right, and the source alone.
        changed: inputs that changed class.
        names: of the classes, where they were given.
        notes: what the user should know.
    """

    source: str
    result: str
    output: str
    kernels: tuple[str, ...]
    top1: tuple[Share, Share]
    top5: tuple[Share, Share] | None
    gained: int
    lost: int
    changed: tuple[ChangedClass, ...]
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Top-1 of the result less that of the source, as a share."""
        return self.top1[1].value - self.top1[0].value

    @property
    def interval(self) -> tuple[float, float]:
        """In which the difference lies with 95% confidence, as both saw the same inputs: Wald's interval with half an input added to each
        cell of the table (A. Agresti and Y. Min, Simple improved confidence intervals for comparing matched proportions, 2005)."""
        n, gained, lost = self.top1[0].total + 2, self.gained + 0.5, self.lost + 0.5
        middle = (gained - lost) / n
        half = _Z * math.sqrt(gained + lost - (gained - lost) ** 2 / n) / n
        return max(-1.0, middle - half), min(1.0, middle + half)

    def class_name(self, number: int) -> str:
        """The name of a class, or its number."""
        return self.names[number] if 0 <= number < len(self.names) else str(number)

    @property
    def sentence(self) -> str:
        """The difference with its interval, and how many changed."""
        low, high = self.interval
        points = f"top-1 changes by {100 * self.difference:+.2f} points (95%: {100 * low:+.2f} to {100 * high:+.2f})"
        return f"{points}: {self.gained} inputs gained, {self.lost} lost, {len(self.changed)} changed class."

    def tables(self) -> tuple[Rows, ...]:
        """Shares with their intervals, and the inputs that changed class."""
        sides = zip(("source", "result"), self.kernels, range(2), strict=True)
        shares = [
            (f"{who}, {kernels}", *_format_share(self.top1[index]), *(("", "") if self.top5 is None else _format_share(self.top5[index])))
            for who, kernels, index in sides
        ]
        changed = [
            (format_text(one.where), *(format_text(self.class_name(number)) for number in (one.label, one.before, one.after)))
            for one in self.changed
        ]
        title = f"{self.top1[0].total} inputs, scores in {format_text(self.output)}"
        return (
            Rows(title, ("", ">top-1", "95%", ">top-5", "95%"), tuple(shares)),
            Rows("Inputs that changed class", ("input", "label", "source says", "result says"), tuple(changed), folded=len(changed) > 60),
            Rows("Notes", ("in words",), tuple((format_sentence(text),) for text in self.notes)),
        )


def _format_share(found: Share) -> tuple[str, str]:
    low, high = found.interval
    return f"{100 * found.value:.2f}%", f"{100 * low:.2f} to {100 * high:.2f}%"


@with_checked_arguments
def accuracy(
    source: Model,
    result: Model,
    data: str | Path,
    labels: str | Path = "",
    *,
    source_format: str = "",
    result_format: str = "",
    preparation: Preparation | None = None,
    samples: int | None = None,
    scores: str = "",
    label_offset: int = 0,
    class_names: str | Path = "",
    kernels: str | Sequence[str] = (),
    progress: Progress = no_progress,
    **options: Unpack[ReadOptions],
) -> Accuracy:
    """Runs source and result on labelled inputs, each in its own runtime, one input after the other.

    Args:
        source, result: model files, their content as bytes, or graphs, of which files are written.
        source_format, result_format: the names of their formats, if suffix and content do not determine them.
        data: a folder with a folder for each class; a folder of files that `labels` lists; or an .npy or .npz file of many samples.
        labels: a list of files with labels, or of labels alone, or an array of them; see qconvert/data/labels.py.
        preparation: of images; without a rule of resizing they are stretched to the input's size.
        samples: how many inputs at most, the first ones; None for all.
        scores: the output that has a score for each class; by default the only one that has one row of numbers.
        label_offset: what is added to a label for its place among the scores: 1 where class 0 of the model is the background.
        class_names: a file with a name in each line.
        kernels: what runs the files, as in check().
        progress: is called with (what, done, total).
        options: of the readers of both formats, as in check().

    Raises:
        QConvertError: a file cannot be read or run, the inputs or labels do not fit.
    """
    require_samples(samples)
    title, names = model_title(source), read_names(Path(class_names)) if class_names else ()
    with temporary_folder() as folder, as_files(source, result, (source_format, result_format)) as (files, formats):
        (before, after), note = sides_of(*files, kernels, options, formats)
        copy = write_adapted_copy(before, Path(folder))
        if copy is not None:
            note = "; ".join(filter(None, (note, *copy.notes, *copy.problems)))
            before = copy.side
        if before.graph.states or after.graph.states:
            raise OptionError(
                "the model has states; accuracy requires outputs that depend on one input alone", file=title, rule="has-states"
            )
        labelled = read_labels(Path(data), labels, names)
        prepared = (preparation or Preparation()).with_stretch()
        inputs = InputFiles(_set_batch_to_one(before.graph), labelled.files[:samples], samples, prepared)
        count = len(labelled.labels)
        if len(inputs) > count or (samples is None and len(inputs) < count):
            raise OptionError(f"there are {count} labels for {len(inputs)} inputs", file=str(labels or data), rule="label-count")
        output = scores or _find_scores_output(before.graph)
        if output not in before.graph.outputs:
            raise OptionError(f"the model has no output {output!r}", file=title, remedy=_remedy(before.graph), rule="unknown-output")
        rows, classes, notes = _run_inputs((before, after), inputs, labelled, output, label_offset, str(data), progress)
    places = [inputs.where(index) for index in range(len(rows))]
    return _report(rows, places, label_offset, classes,
                   {"source": title, "result": model_title(result), "output": output, "kernels": (before.choice, after.choice),
                    "names": names, "notes": tuple(filter(None, (note, *inputs.notes, *notes)))})  # fmt: skip


#: (label, the source's class, the result's, the rank that each gives the label) of an input.
_Row = tuple[int, int, int, int, int]


def _run_inputs(
    sides: tuple[Side, Side],
    inputs: InputFiles,
    labelled: Labelled,
    output: str,
    label_offset: int,
    data: str,
    progress: Progress,
) -> tuple[list[_Row], int, tuple[str, ...]]:
    """Run both sides on the labelled inputs; return a row for each, how many classes there are, and notes."""
    graph, other = (side.graph for side in sides)
    border = Border.of(graph, other, declared_names(other, graph), sides[1].find_other_layout(sides[0]))
    first, second = (side.open() for side in sides)
    rows: list[_Row] = []
    for index, feed in enumerate(inputs):
        given = {name: feed[name] for name in first.inputs}
        pairs = border.pair_outputs(first.run(given), second.run(border.convert_inputs(given, second)))
        pair = next((a, b) for name, a, b in pairs if name == output)
        if labelled.counted and not index and labelled.counted + label_offset != pair[0].size:
            raise OptionError(
                f"there are folders for {labelled.counted} classes, but {output!r} has {pair[0].size} scores",
                file=data,
                remedy="Name the classes with --class-names FILE, one per line, or use --label-offset 1 if class 0 is the background.",
                rule="class-count",
            )
        rows.append(_compare_scores(pair, labelled.labels[index] + label_offset, inputs.where(index), output))
        progress("inputs", index + 1, len(inputs))
    return rows, pair[0].size, (*border.problems, first.note, second.note)


def _set_batch_to_one(graph: Graph) -> Graph:
    """The graph with inputs of one row where their first size is open, so that a file of many rows is many inputs."""
    opened = (graph[name] for name in graph.inputs)
    return graph.evolve(
        tensors=[replace(item, shape=(1, *item.shape[1:])) for item in opened if item.shape and isinstance(item.shape[0], str)]
    )


def _report(rows: Sequence[_Row], places: Sequence[str], offset: int, classes: int, said: Mapping[str, Any]) -> Accuracy:
    """What the answers come to."""
    table = np.array(rows, np.int64)
    total, ranks = len(table), table[:, 3:]

    def count_hits(most: int) -> tuple[Share, Share]:
        first, second = (ranks < most).sum(axis=0)
        return Share(int(first), total), Share(int(second), total)

    right = ranks < 1
    changed = tuple(ChangedClass(place, row[0] - offset, row[1] - offset, row[2] - offset)
                    for place, row in zip(places, rows, strict=True) if row[1] != row[2])  # fmt: skip
    return Accuracy(top1=count_hits(1), top5=count_hits(5) if classes > 5 else None, gained=int((right[:, 1] & ~right[:, 0]).sum()),
                    lost=int((right[:, 0] & ~right[:, 1]).sum()), changed=changed, **said)  # fmt: skip


def _compare_scores(pair: tuple[Array, Array], label: int, where: str, output: str) -> _Row:
    rows = [np.asarray(value).reshape(-1) for value in pair]
    if rows[0].shape != rows[1].shape or rows[0].size < 2:
        raise OptionError(
            f"the output {output!r} has no row of scores for each input, or rows of different lengths in source and result",
            file=where,
            rule="no-scores",
        )
    if not 0 <= label < rows[0].size:
        remedy = "Use --label-offset 1 if class 0 of the model is the background, -1 if labels count from 1."
        raise OptionError(
            f"the label is {label}, and the output has {rows[0].size} scores", file=where, remedy=remedy, rule="label-out-of-range"
        )
    return label, int(rows[0].argmax()), int(rows[1].argmax()), *(_rank(row, label) for row in rows)  # type: ignore[return-value]


def _rank(scores: Array, label: int) -> int:
    """How many classes come before a label: those of higher score, and of an equal one those before it, as argmax has it."""
    own = scores[label]
    return scores.size if own != own else int((scores > own).sum() + (scores[:label] == own).sum())


def _find_scores_output(graph: Graph) -> str:
    """The output that has one row of several numbers."""
    found = [name for name in graph.outputs if _is_row(graph[name].shape)]
    if len(found) != 1:
        raise OptionError(f"{len(found)} outputs could be the scores of classes", remedy=_remedy(graph), rule="ambiguous-output")
    return found[0]


def _is_row(shape: Sequence[int | str] | None) -> bool:
    sizes = [size for size in shape or () if size != 1]
    numbers = [size for size in sizes if isinstance(size, int)]
    return shape is None or (len(numbers) == 1 and len(sizes) <= 2) or (len(sizes) == 1)


def _remedy(graph: Graph) -> str:
    return f"Name it with --scores: {', '.join(map(repr, graph.outputs[:8]))}."
