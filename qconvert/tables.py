"""Tables of words, which pages, notebooks and terminals show in their own ways; and how names and numbers of models stand in them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.errors import printable

#: Of lines where nothing limits them.
_WIDEST = 100_000
#: So many characters of a name stay in the narrowest terminal, and longer words are broken.
_LEAST, _LONGEST_WORD = 10, 40
#: Between two columns.
_GAP = 3
#: A model's names may be megabytes long.
_LONGEST = 200
_LONGEST_SENTENCE = 2000
#: Of a list of numbers, as many are shown.
_MOST_NUMBERS = 4
#: Of a long table a notebook shows as many rows; pages and to_html's callers have all.
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Rows:
    """A table.

    Attributes:
        title: above it.
        columns: heads; > begins the head of a column of numbers, ~ of a column of names, which are shortened on a narrow terminal.
        rows: cells in words.
        marks: of each row, a class of finding that colours it, or "".
        note: a sentence on what it says.
        folded: whether it is opened by a click, as long lists are.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()
    note: str = ""
    folded: bool = False


class Shown:
    """What can say itself in a sentence and tables: in a terminal by show(), in a notebook by itself."""

    __slots__ = ()

    @property
    def sentence(self) -> str:
        """What it is, or what was found."""
        raise NotImplementedError

    def tables(self) -> Sequence[Rows]:
        """All that is in it, in words."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentence}>"

    def show(self) -> None:
        """Print the sentence and the tables."""
        show(self.sentence)
        for item in self.tables():
            if item.rows:
                show(item, *([item.note] if item.note else []))

    def _repr_html_(self) -> str:
        """The same for notebooks. Every text is escaped: a model's names are not trusted."""
        from html import escape

        return f"<p><b>{escape(self.sentence)}</b></p>" + "".join(_html(item) for item in self.tables() if item.rows)


def show(*items: str | Rows, aside: bool = False) -> None:
    """Print texts and tables to standard output, or `aside` to standard error.

    In a terminal a table is as wide as that is, or as COLUMNS says: names are shortened in the middle, other words wrap, numbers stay.
    A pipe or a file gets whole lines, unless COLUMNS is set.
    """
    stream = sys.stderr if aside else sys.stdout
    for item in items:
        print(printable(item) if isinstance(item, str) else _draw_table(item, line_width(aside)), file=stream, flush=True)


def line_width(aside: bool = False) -> int | None:
    """Return how wide lines may be: what COLUMNS says, or the terminal; None for a pipe or a file."""
    stream = sys.stderr if aside else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def shorten_text(text: str, size: int) -> str:
    """A text of at most `size` characters, cut in the middle: names differ in their last letters."""
    if len(text) <= size:
        return text
    following = (size - 1) // 2
    return f"{text[: size - 1 - following]}…{text[len(text) - following :]}"


def _draw_table(item: Rows, width: int | None) -> str:
    """Return the lines of a table that is so wide; its cells are texts, in which nothing is markup."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    rows = [[printable(cell, one_line=True) for cell in row] for row in item.rows]
    heads = [column.lstrip(">~") for column in item.columns]
    sizes = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    if width is not None:
        least = [
            _least_width(column, [head, *(row[place] for row in rows)])
            for place, (column, head) in enumerate(zip(item.columns, heads, strict=True))
        ]
        sizes = narrow_columns(sizes, least, width - _GAP * len(sizes))
        for row in rows:
            for place, column in enumerate(item.columns):
                row[place] = shorten_text(row[place], sizes[place]) if column.startswith("~") else row[place]
    table = Table(title=item.title or None, box=SIMPLE, title_justify="left", pad_edge=False, show_header=any(heads))
    for head, column, size in zip(heads, item.columns, sizes, strict=True):
        table.add_column(head, justify="right" if column.startswith(">") else "left", overflow="fold", width=size)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False, width=_WIDEST)
    with console.capture() as lines:
        console.print(table)
    return "\n".join(line.rstrip() for line in lines.get().splitlines())


def narrow_columns(sizes: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths of columns that fit into `room` together: the widest that may give way does; none falls below its least, fit or not."""
    found = list(sizes)
    while sum(found) > room:
        wide = [place for place, size in enumerate(found) if size > least[place]]
        if not wide:
            break
        found[max(wide, key=lambda place: found[place])] -= 1
    return found


def _least_width(column: str, cells: Sequence[str]) -> int:
    """How narrow a column may be: one of names is shortened, one of words wraps between words, one of numbers stays."""
    if column.startswith(">"):
        return max(map(len, cells))
    if column.startswith("~"):
        return min(_LEAST, max(map(len, cells)))
    return min(_LONGEST_WORD, max((len(word) for cell in cells for word in cell.split()), default=0))


def _html(item: Rows) -> str:
    from html import escape

    align = ["right" if column.startswith(">") else "left" for column in item.columns]

    def line(cells: Iterable[str], element: str) -> str:
        return "".join(f'<{element} style="text-align:{side}">{escape(cell)}</{element}>' for cell, side in zip(cells, align, strict=True))

    heads = f"<thead><tr>{line((column.lstrip('>~') for column in item.columns), 'th')}</tr></thead>" if any(item.columns) else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in item.rows[:_MOST_ROWS])
    more = len(item.rows) - _MOST_ROWS
    notes = [item.note, f"… and {more} more rows." if more > 0 else ""]
    table = f"<table>{heads}<tbody>{body}</tbody></table>" + "".join(f"<p>{escape(text)}</p>" for text in notes if text)
    if item.folded:
        return f"<details><summary>{escape(item.title)}</summary>{table}</details>"
    return (f"<p>{escape(item.title)}</p>" if item.title else "") + table


def format_text(text: object) -> str:
    """A text of a model on one line, without control characters, its middle left out where it is long. Escaping is the page's work."""
    words = printable(str(text)[: 4 * _LONGEST], one_line=True) if len(str(text)) > 4 * _LONGEST else printable(str(text), one_line=True)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST // 2]}…{words[-_LONGEST // 2 :]}"


def format_sentence(text: object) -> str:
    """A sentence of qconvert's own, which may be long and quote names, or a value of metadata."""
    words = str(text)
    if words.startswith("base64:"):
        return f"{3 * (len(words) - 7) // 4:,} bytes"
    return printable(words[:_LONGEST_SENTENCE], one_line=True) + ("…" if len(words) > _LONGEST_SENTENCE else "")


def numbers(values: Any) -> str:
    """A few numbers, such as the scales of channels: one where all are equal, else the first, and how many there are."""
    import numpy as np  # the command line has tables before it has any numbers

    found = np.asarray(values).reshape(-1)
    if found.size and (found == found[0]).all():
        return f"{found[0]:.9g}" + (f" × {found.size}" if found.size > 1 else "")
    some = ", ".join(f"{value:.6g}" for value in found[:_MOST_NUMBERS])
    return some + (f" … ({found.size})" if found.size > _MOST_NUMBERS else "")


def format_share(value: float) -> str:
    """A share in per cent; only all of them print as 100%."""
    return "100%" if value == 1 else f"{min(100 * value, 99.9999):.4f}%"
