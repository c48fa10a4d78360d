"""The operators of the graph and those that formats read, from the code: docs/operators.md and docs/reference/operators-read.md.

python docs/make_operators.py            writes the pages
python docs/make_operators.py --check    says whether they are up to date
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import onnx

os.environ["QCONVERT_DISABLE_PLUGINS"] = "1"  # what is installed next to qconvert is no part of it
DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from qconvert import operators as kinds  # noqa: E402
from qconvert.formats.onnx import ops as onnx_ops  # noqa: E402
from qconvert.formats.onnx import qonnx, qoperator  # noqa: E402
from qconvert.formats.onnx.definitions import DEFINITIONS  # noqa: E402
from qconvert.formats.tflite import ops as tflite_ops  # noqa: E402
from qconvert.formats.torch import ops as torch_ops  # noqa: E402
from qconvert.formats.torch import writers as torch_writers  # noqa: E402
from qconvert.operators import Kind  # noqa: E402
from qconvert.operators.attributes import ARITHMETIC, REQUIRED, AttributeSpec  # noqa: E402
from qconvert.operators.formulas import FORMULAS  # noqa: E402
from qconvert.operators.kind import ROLES, RULES  # noqa: E402

MADE = "<!-- made by docs/make_operators.py; change the code, not this page -->"
INTRODUCTION = """\
The graph that every model is read into has {count} kinds of operators. Names and attributes are ONNX's where ONNX has the operator; weights
are outputs, inputs, then the axes of the window. What each format's own operators become is in
[operators that are read](reference/operators-read.md).
"""
WRITTEN = """\
**Written** names the formats with a form of their own for the kind (QOperator: the form of ONNX other than QDQ), in parentheses those
that write it as others, by a formula for all formats (operators/formulas/). What a format lacks otherwise is decomposed by
[passes](passes.md) where that is exact or possible in float, and is refused by name elsewhere; targets may be stricter
than their format."""
#: What the files of operators are called on the page.
FAMILIES = {
    "convolution": "Convolutions", "matrix": "Products of matrices", "pool": "Pools",
    "normalize": "Normalization and Softmax", "binary": "Arithmetic of two", "logic": "Logic, comparisons and bits",
    "elementwise": "Functions of one",
    "convert": "Quantization and types", "reduce": "Reductions, search and order",
    "join": "Joining", "reshape": "Shapes", "slice": "Slices and pads", "gather": "Gathering and scattering",
    "segments": "Segments, diagonals and windows", "space": "Resizing, space and depth", "create": "Made from nothing",
    "detection": "Detection",
    "signal": "Signals", "recurrent": "Recurrent layers", "control": "Control and states",
    "integer_recurrent": "Recurrent layers of TFLite", "opaque": "Carried as they are",
}  # fmt: skip
#: What kinds mean that ONNX does not have and whose evaluation says nothing of itself.
MEANINGS = {
    "FloorDiv": "the quotient, rounded down",
    "FloorMod": "the remainder with the sign of the divisor",
    "SquaredDifference": "(a - b)^2",
    "Atan2": "the angle of (x, y), given as (y, x)",
    "NotEqual": "a != b",
    "Rsqrt": "1 / sqrt(x)",
    "Square": "x^2",
    "ReduceAny": "whether any element is true",
    "ReduceAll": "whether all elements are true",
    "SegmentSum": "sums of rows, by a sorted list of the segment of each",
    "UnsortedSegment": "sums, products, largest or smallest of rows, by the segment of each",
    "Rank": "how many axes the data have",
    "ZerosLike": "zeros in the shape of the data",
    "Real": "the real part",
    "Imag": "the imaginary part",
    "ComplexAbs": "the magnitude",
    "While": "TFLite's loop: a function says whether there is another turn, another one is the turn",
    "Call": "runs a function",
    "ReadState": "the value of a state",
    "WriteState": "gives a state its next value",
    "IntegerLSTM": "TFLite's LSTM on integers, as its kernel computes it",
    "IntegerSVDF": "TFLite's SVDF on integers, as its kernel computes it",
    "BasicLSTM": "TFLite's LSTM of one step, as its kernel computes it",
    "Dequantize": "the float values that stored integers stand for",
    "Requantize": "from one scale and zero point to others, rounded once",
    "Reinterpret": "the same stored integers under another scale and zero point",
    "Identity": "its input",
    "Opaque": "an operator of the source that qconvert does not know, carried as it is",
}
#: Operators that become several, of which the reader's function names but one.
SEVERAL = frozenset({"BIDIRECTIONAL_SEQUENCE_LSTM", "LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"})
#: Which formats write a kind. PyTorch's table holds torch.export's; TorchScript of modules has the same kinds but for what the reports say.
WRITERS: Mapping[str, Mapping[str, Any]] = {
    "TFLite": tflite_ops.WRITERS, "ONNX": onnx_ops.WRITERS, "QOperator": qoperator.WRITERS, "PyTorch": torch_writers.WRITERS
}  # fmt: skip


def cell(text: str) -> str:
    """Text that stays one cell of a table, and no markup."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in Markdown; cells are as they come."""
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def documented(function: Callable[..., Any] | None) -> str:
    """The first paragraph of what a function says of itself, of the one within a partial or a wrapper too; "" if it says nothing."""
    inner = inspect.unwrap(function.func if isinstance(function, partial) else function) if function is not None else None
    text = inspect.getdoc(inner) or "" if isinstance(inner, FunctionType) else ""
    return " ".join(text.split("\n\n")[0].split()).removesuffix(".")


def meaning(one: Kind) -> str:
    """What an operator of a kind gives; "" if nothing says it."""
    return MEANINGS.get(one.name) or documented(one.evaluate) or ("as in ONNX" if onnx.defs.has(one.name) else "")


def _inputs(one: Kind) -> str:
    """Roles in order, with "?" after those that may be left out and "…" behind the last of any number."""
    fewest, most = one.inputs
    words = [role if index < fewest else f"{role}?" for index, role in enumerate(one.roles)]
    return ", ".join(words) + (" …" if most < 0 else "") if words else "none"


def _outputs(one: Kind) -> str:
    fewest, most = one.outputs
    count = "any number" if most < 0 else str(fewest) if fewest == most else f"{fewest} to {most}"
    return f"{count}, the first {one.results} data" if one.results > 0 and most != one.results else count


def _attribute(name: str, spec: AttributeSpec) -> str:
    """`name`, its sort where its values do not show it, and its default."""
    if name == "arithmetic":
        return "`arithmetic` ([below](#arithmetic))"
    if spec.choices:
        values = ", ".join(f"`{value!r}`" if value == "" else f"`{value}`" for value in spec.choices)
        start = "" if spec.default is REQUIRED or spec.default == spec.choices[0] else f", by default `{spec.default!r}`"
        return f"`{name}`: {values}{start}"
    if spec.default is REQUIRED:
        return f"`{name}` ({spec.sort})"
    return f"`{name}` = `{list(spec.default) if isinstance(spec.default, tuple) else spec.default!r}`"


def _row(one: Kind) -> list[str]:
    types = f"; types `{one.types}`" if one.types else ""
    return [
        f"**{one.name}**",
        cell(meaning(one)),
        _inputs(one),
        _outputs(one),
        ", ".join(_attribute(name, spec) for name, spec in one.attributes.items()).replace("|", "\\|"),
        cell(one.rule) + types.replace("|", "\\|"),
        ", ".join(_written(one.name)),
    ]


def _written(kind: str) -> Iterator[str]:
    """The formats that write a kind, in parentheses those that write it as others by a formula."""
    is_lowered = any(item.is_emitted for item in FORMULAS.get(kind, ()))
    for name, writers in WRITERS.items():
        if kind in writers:
            yield name
        elif is_lowered and name != "QOperator":
            yield f"({name})"


def _operators() -> Iterator[str]:
    yield from ("# Operators", "", MADE, "", INTRODUCTION.format(count=len(kinds.KINDS)))
    yield from table(("role of an input", "what it is"), ([f"{name}", cell(text)] for name, text in ROLES.items()))
    yield ""
    yield from table(("rule", "how quantization goes through"), ([f"{name}", cell(text)] for name, text in RULES.items()))
    yield ""
    yield WRITTEN
    header = ("kind", "meaning", "inputs", "outputs", "attributes", "rule", "written")
    for family, title in FAMILIES.items():
        rows = [_row(one) for one in import_module(f"qconvert.operators.{family}").KINDS]
        yield from ("", f"## {title}", "", *table(header, rows))
    yield from ("", "## Arithmetic", "")
    yield "Kernels round differently, and a converter that is to be exact must know how. The attribute `arithmetic` says it:"
    yield ""
    yield from table(("value", "what the source's kernel computes"), ([f"`{name!r}`", cell(text)] for name, text in ARITHMETIC.items()))


def _strings(code: CodeType) -> set[str]:
    """Texts that stand in the code of a function and of those within it."""
    found = {item for item in code.co_consts if isinstance(item, str)}
    return found.union(*(_strings(item) for item in code.co_consts if isinstance(item, CodeType)))


def becomes(function: Callable[..., Any]) -> str:
    """The kind that an operator becomes: what its table or its reader's function names, and no other; "" where it is not as simple."""
    if isinstance(function, partial):
        return _only({item for item in (*function.args, *function.keywords.values()) if isinstance(item, str)})
    if not isinstance(function, FunctionType):
        return ""
    cells = {item.cell_contents for item in function.__closure__ or () if isinstance(item.cell_contents, str)}
    if cells & {*kinds.KINDS}:
        return _only(cells)
    called = [function.__globals__.get(name) for name in function.__code__.co_names]
    helpers = [item for item in called if isinstance(item, FunctionType) and item.__module__.startswith("qconvert.formats.")]
    return _only(_strings(function.__code__).union(*(_strings(item.__code__) for item in helpers)))


def _only(texts: set[str]) -> str:
    found = texts & {*kinds.KINDS}
    return found.pop() if len(found) == 1 else ""


def _read(title: str, readers: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """A table of one format's operators. The graph has ONNX's names, so an operator of such a name is of that kind."""
    same = {*kinds.KINDS} if title.startswith("ONNX") else set()
    rows = [
        [f"`{name}`", name if name in same else becomes(read) if name not in SEVERAL else "", cell(documented(read))]
        for name, read in sorted(readers.items())
    ]
    yield from ("", f"## {title}", "", *table(("operator", "becomes", "how it is read"), rows))


def _operators_read() -> Iterator[str]:
    yield from ("# Operators that are read", "", MADE, "")
    yield "Every operator of each format that becomes one of the graph's own ([operators](../operators.md)); what limits there are is in"
    yield "[formats](../formats.md), and an operator that is not here is refused by name or carried as it is, as said there."
    yield from _read("TFLite", tflite_ops.READERS)
    plain = {name: read for name, read in onnx_ops.READERS.items() if "." not in name}
    yield from _read("ONNX", plain)
    yield from _read("ONNX, of other domains", {n: r for n, r in {**onnx_ops.READERS, **qoperator.READERS}.items() if n not in plain})
    yield from ("", "## ONNX, by their definitions", "")
    yield "Operators that stay as they are for another ONNX file. For all else nodes of other operators take their place: those of the"
    yield "function in onnx's own schema, or those of qconvert (qconvert/formats/onnx/definitions)."
    schemas = [item for item in onnx.defs.get_all_schemas() if not item.domain]
    functions = {item.name for item in schemas if item.has_function or item.has_context_dependent_function}
    defined = {*functions, *DEFINITIONS} - {*onnx_ops.READERS, *qoperator.READERS}
    yield from ("", ", ".join(f"`{name}`" for name in sorted(defined)))
    yield from _read("QONNX", {name.rpartition(".")[2]: read for name, read in qonnx.READERS.items()})
    yield from ("", "## PyTorch", "")
    names: dict[str, list[str]] = {}
    for name in sorted(torch_ops.OPERATORS):
        space, _, rest = name.partition("::")
        names.setdefault(space, []).append(rest)
    yield f"{len(torch_ops.OPERATORS)} operators of TorchScript and torch.export, by name; overloads are told apart by their arguments."
    yield ""
    yield from table(
        ("namespace", "operators"), ([f"`{space}`", ", ".join(f"`{name}`" for name in found)] for space, found in names.items())
    )


def pages() -> dict[Path, str]:
    """Every page with its text."""
    found = {DOCS / "operators.md": _operators(), DOCS / "reference" / "operators-read.md": _operators_read()}
    return {page: re.sub(r"[ \t]+$", "", "\n".join(lines), flags=re.M) + "\n" for page, lines in found.items()}


def written(made: Mapping[Path, str], arguments: Sequence[str]) -> int:
    """Writes the pages that are not up to date, or with --check names them. Gives the exit code."""
    old = [page for page, text in made.items() if not page.exists() or page.read_text() != text]
    for page in old:
        print(page)
        if "--check" not in arguments:
            page.parent.mkdir(exist_ok=True)
            page.write_text(made[page])
    return int("--check" in arguments and bool(old))


if __name__ == "__main__":
    raise SystemExit(written(pages(), sys.argv[1:]))
