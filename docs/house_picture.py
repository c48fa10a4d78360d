"""The rooms of qconvert as an SVG: layers from the bottom up, formats in another colour, arrows to what a room imports (make_house.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _GAP, _ROW, _MARGIN = 102, 30, 8, 62, 8
_STYLE = (
    "text{font:14px ui-sans-serif,system-ui,sans-serif;text-anchor:middle;fill:#123}"
    "rect{fill:#d9eeea;stroke:#2a8577;stroke-width:1.2}path{fill:none;stroke:#7d8b99;stroke-width:1.1}"
    ".format{fill:#f3e6c8;stroke:#a5812c}"
)


def drawn(rooms: Sequence[str], arrows: Sequence[tuple[str, str]]) -> str:
    """The picture.

    Args:
        rooms: from the bottom up.
        arrows: (room, a room below it), those that a path of others stands for left out.
    """
    levels = _levels(rooms, arrows)
    rows = _ordered(levels, arrows)
    width = max(len(row) for row in rows) * (_WIDTH + _GAP) - _GAP + 2 * _MARGIN
    height = len(rows) * _ROW - (_ROW - _HEIGHT) + 2 * _MARGIN
    at = _places(rows, width, height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="The rooms of qconvert">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="fill:#7d8b99;stroke:none"/></marker></defs>',
    ]
    lines += [_arrow(at[above], at[below]) for above, below in arrows]
    lines += [_room(room, *at[room]) for room in rooms]
    return "\n".join([*lines, "</svg>", ""])


def _levels(rooms: Sequence[str], arrows: Sequence[tuple[str, str]]) -> Mapping[str, int]:
    """Each room one above the highest that it imports."""
    found: dict[str, int] = {}
    for room in rooms:
        found[room] = 1 + max((found[below] for above, below in arrows if above == room), default=-1)
    return found


def _ordered(levels: Mapping[str, int], arrows: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The rooms of each level from left to right, near those that they are joined with: a few rounds of barycentres."""
    rows = [[room for room in levels if levels[room] == level] for level in range(max(levels.values()) + 1)]
    joined = {room: [b if a == room else a for a, b in arrows if room in (a, b)] for room in levels}
    for _ in range(12):
        at = {room: (place + 0.5) / len(row) for row in rows for place, room in enumerate(row)}
        for row in rows:
            row.sort(key=lambda room: (sum(at[other] for other in joined[room]) / max(len(joined[room]), 1), room))
    return rows


def _places(rows: Sequence[Sequence[str]], width: int, height: int) -> Mapping[str, tuple[float, float]]:
    """The middle of the upper edge of each room."""
    found = {}
    for level, row in enumerate(rows):
        step = (width - 2 * _MARGIN) / len(row)
        for place, room in enumerate(row):
            found[room] = _MARGIN + step * (place + 0.5), height - _MARGIN - _HEIGHT - level * _ROW
    return found


def _arrow(above: tuple[float, float], below: tuple[float, float]) -> str:
    (x, y), (end, bottom) = (above[0], above[1] + _HEIGHT), (below[0], below[1] - 1)
    bend = (bottom - y) / 2
    return (
        f'<path marker-end="url(#tip)" d="M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {end:.0f} {bottom - bend:.0f} {end:.0f} {bottom:.0f}"/>'
    )


def _room(room: str, x: float, y: float) -> str:
    kind = ' class="format"' if room.startswith("formats.") else ""
    name = room.removeprefix("formats.")
    fit = f' textLength="{_WIDTH - 8}" lengthAdjust="spacingAndGlyphs"' if len(name) > 12 else ""
    return (
        f'<rect{kind} x="{x - _WIDTH / 2:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
        f'<text x="{x:.0f}" y="{y + 20:.0f}"{fit}>{name}</text>'
    )
