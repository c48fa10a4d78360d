"""What commands print with --json: documents that say by which schema they are made (docs/json.schema.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer

__all__ = ["VERSION", "print_document"]

#: Of the schema of all documents. It grows when a field goes, or means something else; a field that is added changes nothing.
VERSION = 1


def print_document(name: str, content: Mapping[str, Any] | Sequence[Any], *, aside: bool = False) -> None:
    """Print the result of a command as JSON.

    Args:
        name: of the document, which is that of its command.
        content: its fields; a list becomes the field `items`.
        aside: whether it goes to standard error, as standard output has a model.
    """
    fields = content if isinstance(content, Mapping) else {"items": list(content)}
    typer.echo(json.dumps({"schema": f"qconvert/{name}/{VERSION}", **fields}, indent=2), err=aside)
