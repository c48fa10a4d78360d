"""How results are shown: rich tables for people, documents for `--json`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from qconvert.errors import format_count, printable
from qconvert.plugins import Option, formats, list_plugins, passes, runtimes, targets
from qconvert.plugins.options import READING, is_for_every_format
from qconvert.tables import Rows, format_share, show

if TYPE_CHECKING:
    from rich.progress import Progress

    from qconvert.checking.auditing import AuditReport
    from qconvert.checking.findings import CheckReport
    from qconvert.checking.pass_costs import PassCost
    from qconvert.checking.proof.classes import Proof
    from qconvert.checking.roundtrips import RoundtripReport
    from qconvert.conversion import ConversionReport
    from qconvert.targets.audit import AuditLine

#: A table of a check has no more rows without --verbose.
_MOST_ROWS = 8


def print_conversion(report: ConversionReport, verbose: bool, aside: bool = False) -> None:
    """Print the kept values, the changes and their cost, the operators on integers, and the next steps."""
    from qconvert.cli.conversion_summary import summary

    show("\n".join(summary(report, verbose)), aside=aside)


def _audit_lines(audit: Iterable[AuditLine], verbose: bool) -> list[str]:
    """How many operators run as integers, and those that do not, or all of them, by kind and reason."""
    from qconvert.targets.audit import audited_counts

    audit = tuple(audit)
    return [audited_counts(audit)] + [f"  {line}" for line in audit if verbose or not (line.integer or line.converts)]


def audit_document(report: AuditReport) -> dict[str, Any]:
    """An AuditReport as plain data."""
    return {**asdict(report), "otherwise": [asdict(op) for op in report.otherwise]}


def print_audit(report: AuditReport, verbose: bool) -> None:
    """The prediction by kind and reason, the layers of an engine if one was built, and what ran otherwise."""
    lines = [f"{report.source} for {report.target}", *_audit_lines(report.lines, verbose)]
    if report.layers:
        show("\n".join(lines), _layers(report))
        lines = []
    seen = [op for op in report.operators if op.ran is not None]
    if seen:
        ran = "places" if report.accelerator else "would run" if report.layers else "ran"
        lines.append(f"{report.runtime} {ran} {len(seen) - len(report.otherwise)} of {len(seen)} operators as predicted")
    for op in report.otherwise:
        ran = f"on {report.runs_on(op.ran)}" if report.accelerator else "as integers" if op.ran else "in float"
        lines.append(f"  {op.operator} ({op.output!r}) ran {ran}, as {op.layer}; predicted: {op.reason}")
    lines += [f"note: {text}" for text in report.notes]
    show("\n".join((*lines, *([f"inconclusive: {report.unjudged}"] if report.unjudged else []))))


def _layers(report: AuditReport) -> Rows:
    """The layers of an engine; "!" marks those with an operator that was predicted to run otherwise."""
    rows = []
    for layer in report.layers:
        counts = Counter(layer.operators)
        operators = " ".join(f"{kind}*{count}" if count > 1 else kind for kind, count in counts.items())
        runs = "" if layer.integer is None else "integers" if layer.integer else "float"
        why = "; ".join(layer.reasons) if layer.integer is False else ""
        rows.append(("!" if layer.otherwise else "", layer.name, layer.type, operators, runs, why))
    return Rows("", ("", "~layer", "kind", "operators", "runs as", "why"), tuple(rows))


def check_document(report: CheckReport) -> dict[str, Any]:
    """A CheckReport as plain data."""
    proof: dict[str, Any] | None = None
    if report.proof is not None:
        shown = {item.name for item in fields(report.proof) if item.repr}  # the others are for the check alone
        proof = {name: value for name, value in asdict(report.proof).items() if name in shown}
        proof["operators"] = [{name.rstrip("_"): value for name, value in item.items()} for item in proof["operators"]]
    return {**asdict(report), "proof": proof, "verdict": report.verdict, "passed": report.passed}


def print_check(report: CheckReport, every: bool = False, prove: bool = False) -> None:
    """The verdict and its reason, what ran, the outputs and operators that differ, and notes.

    Args:
        report: of the check.
        every: whether outputs and operators that are equal are listed too.
        prove: whether it is said of each operator what is proved.
    """
    from qconvert.checking.findings import CLASSES, EQUAL, operators_table, outputs_table

    most = None if every else _MOST_ROWS
    show(report.sentence)
    if report.ran:
        show(f"ran: {report.ran}")
    problems = report.problems[1:]
    show(*(f"problem: {text}" for text in problems[:most]), *_count_left_out(problems, most))
    for text in report.unjudged[0 if report.problems else 1 :]:
        show(f"inconclusive: {text}")
    for text in report.costs:
        show(f"cost: {text}")
    if report.texts is not None:
        show(f"texts: {report.texts.sentence}")
    for title, outputs in (("Float and quantized", report.float_outputs), ("Outputs", report.outputs)):
        if listed := [item for item in outputs if every or item.differs or item.shapes or item.nan]:
            show(replace(outputs_table(listed[:most]), title=title), *_count_left_out(listed, most))
    if listed_operators := [item for item in report.operators if every or item.verdict != EQUAL]:
        worst = sorted(listed_operators, key=lambda item: -CLASSES.index(item.verdict))[:most]
        table = operators_table([item for item in listed_operators if any(item is other for other in worst)])
        rows = tuple(row[:-1] for row in table.rows)  # the line of classes has the reasons
        show(replace(table, title="Operators", columns=table.columns[:-1], rows=rows), *_count_left_out(listed_operators, most))
    if report.operators:
        show(f"operators: {operators_table(report.operators).note}")
    if prove and report.proof is not None:
        _print_proof(report.proof, every)
    for text in (*report.notes, *report.machine):
        show(f"note: {text}")


def _count_left_out(listed: Sequence[object], most: int | None) -> Sequence[str]:
    """Return a line that says how many rows a table leaves out; none where it has all."""
    return () if most is None or len(listed) <= most else (f"and {len(listed) - most} more; --verbose lists them",)


def _print_proof(proof: Proof, every: bool) -> None:
    """What is proved for all inputs, and the operators that are not proved equal."""
    from qconvert.checking.proof.classes import EQUAL_CLASSES

    show(proof.sentence)
    if listed := [item for item in proof.operators if every or item.class_ not in EQUAL_CLASSES]:
        show(proof.table(listed))
    for text in proof.problems[1:]:
        show(f"not proved: {text}")
    if proof.lost:
        show(f"not in the result: {', '.join(proof.lost)}")


def roundtrip_document(report: RoundtripReport) -> dict[str, Any]:
    """A RoundtripReport as plain data."""
    return {**asdict(report), "passed": report.passed, "verdict": report.verdict}


def print_roundtrip(report: RoundtripReport) -> None:
    """A row for each conversion, what was lost or rounded otherwise, and the verdict."""
    from qconvert.checking.findings import NOT_EQUAL, NOT_JUDGED, PASSED

    rows = []
    form = report.form
    for leg in report.legs:
        graph = format_count(len(leg.differences), "difference") if leg.differences else "equal"
        counts = (f"{leg.kept.constants_equal} of {leg.kept.constants}", f"{leg.kept.scales_equal} of {leg.kept.scales}")
        worst = max(leg.outputs, key=lambda item: item.largest, default=None)
        shown = ("not run", "") if worst is None else (format_share(min(o.equal for o in leg.outputs)), f"{worst.largest:.6g} {worst.unit}")
        rows.append((f"{form} -> {leg.form}", graph, *counts, *shown))
        form = leg.form
    kept = report.legs[-1].kept
    whole = f"{kept.integers} quantized integers in {kept.constants} constants and {kept.scales} quantizations"
    same = f"{whole} are the same after {len(report.legs)} conversions"
    ends = {PASSED: f"passed: {same}", NOT_EQUAL: "failed: see the problems below", NOT_JUDGED: f"inconclusive: {same}, but see below"}
    show(ends[report.verdict])
    show(Rows("", ("conversion", "graph", ">constants equal", ">scales equal", ">outputs equal", ">largest"), tuple(rows)))
    notes = [f"{leg.form}: {text}" for leg in report.legs for text in (*map(str, leg.changes), *leg.notes)]
    notes += report.notes
    notes += [f"{leg.form}: {leg.arithmetic}" + (f"; {leg.explained}" if leg.explained else "") for leg in report.legs if leg.arithmetic]
    notes += [text for leg in report.legs for text in leg.machine]
    problems = [f"problem: {leg.form}: {text}" for leg in report.legs for text in leg.problems]
    problems += [f"inconclusive: {leg.form}: {text}" for leg in report.legs for text in leg.unjudged]
    if notes or problems:
        show("\n".join((*problems, *dict.fromkeys(notes))))


@contextmanager
def progress(hidden: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on the error stream; gives a function (what, done, total)."""
    if hidden or not sys.stderr.isatty():  # a bar that ends in a pipe is an empty line
        yield lambda what, done, total: None
        return
    with ExitStack() as stack:
        tasks: dict[str, Any] = {}
        shown: list[Progress] = []

        def step(what: str, done: int, total: int) -> None:
            if not shown:  # most conversions take no step: they do not wait for rich
                from rich.console import Console
                from rich.progress import Progress

                shown.append(stack.enter_context(Progress(console=Console(stderr=True), transient=True)))
            if what not in tasks:
                from rich.markup import escape

                tasks[what] = shown[0].add_task(escape(printable(what, one_line=True)), total=total)
            shown[0].update(tasks[what], completed=done, total=total)

        yield step


def formats_document() -> dict[str, Any]:
    """Formats, targets, passes and runtimes."""
    return {
        "formats": [
            {
                "name": f.name,
                "suffixes": list(f.suffixes),
                "content": f.content,
                "reads": f.read is not None or f.read_encodings is not None,
                "writes": any(item is not None for item in (f.write, f.write_encodings, f.repack)),
                "summary": f.summary,
                "read_options": _options_document(f.read_options),
                "write_options": _options_document(f.write_options),
            }
            for f in formats().values()
        ],
        "targets": [{"name": t.name, "format": t.format, "summary": t.summary} for t in targets().values()],
        "passes": [{"name": p.name, "summary": p.summary} for p in passes().values()],
        "runtimes": [
            {"name": r.name, "formats": list(r.formats), "kernels": list(r.kernels), "summary": r.summary} for r in runtimes().values()
        ],
    }


def _options_document(options: Iterable[Option]) -> list[dict[str, Any]]:
    """Options as plain data."""
    return [
        {
            "name": o.name,
            "type": o.type.__name__,
            "default": list(o.default) if o.many else o.default,
            "choices": list(o.choices),
            "help": o.help,
        }
        for o in options
    ]


def _options_table(options: Iterable[tuple[str, Option]], owner: str) -> Rows:
    """A table of options; `owner` heads the column of what takes them."""
    rows = []
    for who, option in options:
        kind = " or ".join(str(choice) for choice in option.choices) or option.type.__name__
        rows.append((option.name, kind, str(option.default), who, option.help))
    return Rows("", ("option", "type", "default", owner, "what it says"), tuple(rows))


def print_formats() -> None:
    """Tables of formats, of their options, of targets and runtimes."""
    listed = []
    for item in formats_document()["formats"]:
        words = ["yes" if item[key] else "no" for key in ("reads", "writes")]
        listed.append((item["name"], " ".join(item["suffixes"]), *words, item["summary"]))
    rows = [("any, reading", option) for option in READING]
    rows += [(f"{f.name}, reading", option) for f in formats().values() for option in f.read_options if not is_for_every_format(option)]
    rows += [(f"{f.name}, writing", option) for f in formats().values() for option in f.write_options]
    goals = []
    for item in formats_document()["targets"]:
        default = " (default)" if formats()[item["format"]].default_target == item["name"] else ""
        goals.append((item["name"], item["format"], item["summary"] + default))
    engines = []
    for item in formats_document()["runtimes"]:
        kernels = " ".join(f"{item['name']}:{name}" for name in item["kernels"])
        engines.append((item["name"], " ".join(item["formats"]), kernels, item["summary"]))
    show(
        Rows("", ("format", "suffixes", "reads", "writes", "what it is"), tuple(listed)),
        *([_options_table(rows, "format")] if rows else ()),
        Rows("", ("target", "format", "what it is"), tuple(goals)),
        Rows("", ("runtime", "formats", "--kernels", "what it is"), tuple(engines)),
    )


def passes_document() -> list[dict[str, Any]]:
    """Every pass with what it changes, whether it is exact, its options, and what it has to follow."""
    return [
        {
            "name": item.name,
            "exact": item.exact,
            "within": item.within,
            "summary": item.summary,
            "options": _options_document(item.options),
            "after": list(item.after),
            "requires": list(item.requires),
            "ensures": list(item.ensures),
        }
        for item in passes().values()
    ]


def print_passes() -> None:
    """Tables of passes and of their options."""
    rows = tuple((item["name"], "yes" if item["exact"] else "no", item["summary"]) for item in passes_document())
    show(
        Rows("", ("pass", "exact", "what it changes"), rows),
        _options_table([(item.name, option) for item in passes().values() for option in item.options], "pass"),
    )


def print_costs(found: Sequence[PassCost]) -> None:
    """A table of passes, the cheapest first, and a line for each that did not run."""
    rows = []
    for item in found:
        if item.refused:
            continue
        worst = "" if item.worst is None or item.worst.sqnr_db is None else f"{item.worst.sqnr_db:.1f} dB"
        sqnr = "equal" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB"
        top1 = "" if item.same_top1 is None else f"{100 * item.same_top1:.4g}%"
        rows.append((_pass_call(item), str(item.activations), str(item.weights), worst, sqnr, top1, item.ran))
    refused = [f"{_pass_call(item)}: {' '.join(item.refused.split())}" for item in found if item.refused]
    heads = ("pass", ">activations", ">weights", ">worst tensor", ">outputs", ">same top-1", "ran in")
    show(Rows("", heads, tuple(rows)), *refused, *([] if found else ["No pass that is not exact would change this model."]))


def _pass_call(item: PassCost) -> str:
    """The pass as --pass takes it."""
    options = ",".join(f"{name}={value}" for name, value in item.options.items())
    return f"{item.name}:{options}" if options else item.name


def print_plugins() -> None:
    """A table of plugins."""
    rows = []
    for item in list_plugins():
        state = [f"skipped: {item.problem}"] if item.problem else ["loaded"]
        state += [f"replaces {', '.join(item.replaces)}"] if item.replaces else []
        rows.append((item.name, item.origin, "; ".join(state)))
    show(Rows("", ("plugin", "from", "state"), tuple(rows)))
