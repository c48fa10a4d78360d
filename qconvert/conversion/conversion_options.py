"""The options of a conversion, sorted by who takes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qconvert.errors import OptionError
from qconvert.graph.names import quote_nearest
from qconvert.plugins import Format, Option, Target, declared_options, encodings_format_of, formats, pass_named
from qconvert.plugins import passes as known_passes
from qconvert.plugins.options import check_options, json_object, pick_declared
from qconvert.plugins.rules import join_words

__all__ = ["Given", "files_of", "with_encodings"]

#: What convert() takes besides options.
_KEYWORDS = ("target", "force", "passes", "encodings", "min_tensor_sqnr")


@dataclass(frozen=True, slots=True)
class Given:
    """What each part of a conversion takes: the source's reader, the passes, the result's writer."""

    read: Mapping[str, Any]
    passes: Mapping[str, Any]
    write: Mapping[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any], reader: Format, writer: Format, passes: Sequence[str], target: Target | None) -> Given:
        """Sorts options; one at its default may be given to any conversion.

        Raises:
            OptionError: nobody declares an option, nothing in this conversion takes it, or its value is wrong.
        """
        names = (*passes, *(target.passes if target is not None else ()))
        of_passes = [option for name in names for option in pass_named(name).options]
        taking = {"read": reader.read_options, "passes": of_passes, "write": writer.write_options}
        known = {option.name: option for declared in taking.values() for option in declared}
        idle = declared_options()
        set_here = {name: value for name, value in options.items() if name in known or name not in idle or value != idle[name].default}
        who = f"nothing in a conversion from {reader.name} to {writer.name}"
        try:
            given = check_options(set_here, known.values(), who)
        except OptionError as error:
            if others := _takers(set_here, known):
                error.remedy = f"{others} {error.remedy}"
            elif unknown := [name for name in set_here if name not in known]:
                error.reason = f"{who} takes the option {quote_nearest(unknown[:1], (*known, *_KEYWORDS))}"
            raise
        own = {} if target is None else check_options(target.write_options, writer.write_options, f"nothing that writes {writer.name}")
        found = {part: pick_declared(given, declared) for part, declared in taking.items()}
        return cls(found["read"], {**pick_declared(own, of_passes), **found["passes"]}, {**own, **found["write"]})


def with_encodings(options: Mapping[str, Any], passes: Sequence[str], reader: Format) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options and passes of a conversion that applies a file of encodings: the pass that does stands first.

    Options of the reader of encodings go to the pass; what the source's reader takes too is meant for that.

    Raises:
        QConvertError: the file cannot be read, or is of no format of encodings.
    """
    found = dict(options)
    if not found.get("encodings"):
        return found, tuple(passes)
    own = {option.name for option in encodings_format_of(Path(found["encodings"]), is_read=True).read_options}
    own -= {option.name for option in reader.read_options}
    stated = {name: os.fspath(found.pop(name)) for name in own & found.keys()}
    if stated:
        found["encodings_options"] = json.dumps(stated)
    return found, (*(["apply_encodings"] if "apply_encodings" not in [item.partition(":")[0] for item in passes] else []), *passes)


def files_of(given: Mapping[str, Any]) -> dict[str, Path]:
    """The files that options name which are read next to the source, by the option."""
    known = declared_options()
    stated = {**given, **json_object("encodings_options", given.get("encodings_options", "{}"))}
    return {name: Path(value) for name, value in stated.items() if value and name in known and known[name].is_file}


def _takers(given: Mapping[str, Any], known: Mapping[str, Option]) -> str:
    """Who takes the first option that is not known here, as a sentence; "" if nobody does."""
    name = next((name for name in given if name not in known), "")
    found = [f"writing {item.name}" for item in formats().values() if name in {option.name for option in item.write_options}]
    found += [f"reading {item.name}" for item in formats().values() if name in {option.name for option in item.read_options}]
    found += [f"the pass {item.name}" for item in known_passes().values() if name in {option.name for option in item.options}]
    return f"It belongs to {join_words(found)}." if found else ""
