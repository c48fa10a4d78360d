"""The scales of a result in a file next to it: where an option of the writer asks for it, the model is written in float."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qconvert.encodings import extract_encodings
from qconvert.errors import OptionError, UnsupportedError
from qconvert.files import require_writable, whole_file
from qconvert.graph import Graph
from qconvert.plugins import Change, Format, Target, format_named, name_changes, target_named
from qconvert.plugins.options import fill_defaults
from qconvert.rules.validation import validate

__all__ = ["ScalesFile", "target_with_scales"]


@dataclass(frozen=True, slots=True)
class ScalesFile:
    """A file of scales next to a model.

    Attributes:
        option: the name of the option that asks for it.
        path: the file.
        writer: its format.
    """

    option: str
    path: Path
    writer: Format

    @classmethod
    def of(cls, writer: Format, options: Mapping[str, Any]) -> ScalesFile | None:
        """What the options of a writer of models ask for; None if the model has its scales itself.

        Raises:
            OptionError: an option of such a file is given without the file.
        """
        for option in writer.write_options:
            if not option.scales:
                continue
            encodings = format_named(option.scales)
            if options.get(option.name):
                return cls(option.name, Path(options[option.name]), encodings)
            idle = [own.name for own in encodings.write_options if options.get(own.name, own.default) != own.default]
            if idle:
                reason = f"--{idle[0].replace('_', '-')} is given without --{option.name.replace('_', '-')}, whose file it is about"
                raise OptionError(
                    reason, remedy=f"Name the file with --{option.name.replace('_', '-')}, or leave it out.", rule="idle-option"
                )
        return None

    def require_place(self, model: Path, *, force: bool, reads: Iterable[Path]) -> None:
        """Raises what whole_file() would where the file cannot be put, or is the model's."""
        if os.path.realpath(self.path) == os.path.realpath(model):
            raise OptionError(
                "model and scales would be written to this file",
                file=str(model),
                remedy="Give the scales a name of their own.",
                rule="same-file-twice",
            )
        require_writable(self.path, force=force, reads=reads)

    @contextmanager
    def extract_to_file(
        self, graph: Graph, options: Mapping[str, Any], notes: list[Change], *, force: bool, reads: Iterable[Path]
    ) -> Iterator[Graph]:
        """The graph in float, to be written in the block; the file of scales is moved into place when the block succeeds.

        Args:
            graph: quantized.
            options: of the model's writer, which has those of the file too.
            notes: gets what the file's writer says.
            force, reads: as of whole_file().

        Raises:
            QConvertError: the file cannot hold the scales.
        """
        real, found = extract_encodings(graph)
        if not found.entries:
            raise UnsupportedError(
                "no tensor of the model is quantized, so that there are no scales to write", file=str(self.path), rule="nothing-quantized"
            )
        validate(real)
        assert self.writer.write_encodings is not None
        with whole_file(self.path, force=force, reads=reads) as temporary:
            said = self.writer.write_encodings(found, real, temporary, fill_defaults(options, self.writer.write_options))
            notes += name_changes(said, by=self.writer.name)
            yield real


def target_with_scales(target: Target | None, writer: Format, scales: ScalesFile | None) -> Target | None:
    """The target of a conversion whose scales stand in a file compared with the model, or in the model.

    Raises:
        OptionError: the target is for scales in a file, and none is named.
    """
    if target is None:
        return None
    if scales is not None:
        return target_named(target.with_scales) if target.with_scales else target
    if target.needs_scales:
        flags = " or ".join(f"--{option.name.replace('_', '-')} FILE" for option in writer.write_options if option.scales)
        raise OptionError(
            f"the target {target.name} keeps its scales in a separate file", remedy=f"Name it: {flags}.", rule="scales-file-missing"
        )
    return target
