"""GGUF: the weights of a network in blocks of 32 with a scale each, next to a float network that has the operators."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugin import Format, Option, defer_imports, hookimpl

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "1.0"

_lazy = defer_imports(__name__)

_NAMES = Option(
    "names", str, "", "GGUF: a JSON object, name in the network -> name in the .gguf file; others have one name in both.", is_file=True
)
_READ_OPTIONS = (
    Option("graph", str, "", "the float network whose weights the file has.", is_file=True, about_graph=True),
    _NAMES,
    Option("rest", str, "refuse", "GGUF: tensors that the network lacks: refuse or ignore.", ("refuse", "ignore")),
    Option("resemblance", str, "demand", "GGUF: weights far from the network's own: demand (an error) or waive.", ("demand", "waive")),
)
_WRITE_OPTIONS = (
    _NAMES,
    Option("template", str, "", "GGUF, from a checkpoint: a .gguf file of the same model, for all but its weights.", is_file=True),
    Option("requantize", bool, False, "Checkpoints: take the nearest weights where the result has no room for the source's."),
    Option("rounding", str, "refuse", "GGUF: scales and minima that float16 does not hold: refuse or round.", ("refuse", "round")),
)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [
        Format(
            "gguf",
            (".gguf",),
            "GGUF: weights in blocks, for a float network that has the operators",
            read=_lazy("reader", "read"),
            write=_lazy("writer", "write"),
            open_checkpoint=_lazy("checkpoint", "open_checkpoint"),
            repack=_lazy("repacking", "repack"),
            recognizes=lambda start: start[:4] == b"GGUF",
            contents=_lazy("container", "contents"),
            read_options=_READ_OPTIONS,
            write_options=_WRITE_OPTIONS,
        )
    ]
