"""PyTorch's model files: TorchScript and torch.export archives, read without PyTorch and without running them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.errors import OptionError
from qconvert.plugins import Format, Option, defer_imports, hookimpl
from qconvert.plugins.options import FORM, NUMERICS

if TYPE_CHECKING:
    from qconvert.graph import Graph

_lazy = defer_imports(__name__)


def _read(path: Path, options: Mapping[str, Any]) -> Graph:
    from qconvert.formats.torch.reader import read

    if idle := [option.name for option in _READ_OPTIONS if option.about_graph and options.get(option.name)]:
        raise OptionError(
            f"the option {idle[0]} applies to a file without a graph",
            remedy="Leave out the option, or give a graph with --graph.",
            rule="option-not-applicable",
        )
    return read(path, options)


def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    if _file_form(path, options) == "modules":
        from qconvert.formats.torch.quantized_modules.writer import write as write_modules

        return write_modules(graph, path, options)
    from qconvert.formats.torch.writer import write

    return write(graph, path, options)


def _as_written(path: Path, graph: Graph, checked: Any) -> Graph:
    from qconvert.formats.reading.quantizations import fuse_quantized_ops
    from qconvert.formats.torch.reader import read

    return fuse_quantized_ops(read(path, {}, again=True))


def _file_form(path: Path, options: Mapping[str, Any]) -> str:
    """The form of a file by its name: programs of torch.export in .pt2, TorchScript of quantized modules in .pt and .ptl."""
    suffix, stated = path.suffix.lower(), str(options.get("form") or "")
    if suffix in (".pth", ".safetensors"):
        reason = f"files that end in {suffix} hold tensors, and no graph"
        raise OptionError(
            reason, file=str(path), remedy="Use a name that ends in .pt2 for torch.export, or in .pt for TorchScript.", rule="wrong-suffix"
        )
    usual = next((form for form, suffixes in _SUFFIXES.items() if suffix in suffixes), "")
    if stated in _SUFFIXES and usual and stated != usual:
        reason = f"a file that ends in {suffix} holds {_HOLDS[usual]}, not {_HOLDS[stated]}"
        raise OptionError(
            reason, file=str(path), remedy=f"Use a name that ends in {_SUFFIXES[stated][0]}, or --form {usual}.", rule="contradicting-form"
        )
    return usual or (stated if stated in _SUFFIXES else "program")


def _recognizes(start: bytes) -> bool:
    """A zip archive whose first entry lies in a folder, as in every file of today; an older .pt2 begins with its version."""
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    inside = b"/" in name or len(name) == len(start) - 30 or name.startswith((b"serialized_", b"version"))
    return start[:4] == b"PK\x03\x04" and inside and name.isascii() and name.decode("ascii").isprintable()


#: Written forms -> the file suffixes that PyTorch's users expect, and a description of the form.
_SUFFIXES = {"program": (".pt2",), "modules": (".pt", ".ptl")}
_HOLDS = {"program": "a torch.export program", "modules": "TorchScript"}
_WRITE_OPTIONS = (
    NUMERICS,
    replace(FORM, choices=tuple(_SUFFIXES)),
    Option("freeze", bool, False, "TorchScript: write one function with constants, without modules."),
)
_READ_OPTIONS = (
    Option("input_shape", str, "", "Sizes of inputs, such as 1,3,224,224 or x=1,3,224,224; y=batch,10."),
    Option("graph", str, "", "The network of a state_dict without quantization: .onnx or .pt2.", is_file=True, about_graph=True),
    Option(
        "modules", str, "", "With --graph, the tensors that the scales of modules belong to: module=tensor; ….", about_graph=True
    ),
    Option(
        "round_data", bool, False, "Checkpoints with --graph: round data of layers for which the file has a scale.",
        about_graph=True,
    ),
    Option("oneflow", str, "", "How OneFlow's observers quantize, such as google,affine,per_channel,8 or cambricon,16.", about_graph=True),
    Option(
        "engine", str, "", "PyTorch's engine whose arithmetic the model has: x86, fbgemm, onednn, qnnpack; by default guessed from "
        "the file.",
        ("x86", "fbgemm", "onednn", "qnnpack"),
    ),
)  # fmt: skip


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "PyTorch: TorchScript (.pt, .ptl), torch.export (.pt2), and state_dicts for a graph (.pth, .safetensors)"
    return [
        Format(
            "torch",
            (".pt", ".ptl", ".pt2", ".pth", ".safetensors"),
            summary,
            read=_read,
            write=_write,
            default_target="torch",
            own_target="torch",
            narrow_ranges=True,
            recognizes=_recognizes,
            parameters=_lazy("states.reader", "read_parameters"),
            modules=_lazy("reader", "modules"),
            as_written=_as_written,
            read_options=_READ_OPTIONS,
            form_of=_file_form,
            write_options=_WRITE_OPTIONS,
            normal_form=("absorb_quantization", "fuse_dynamic", "fold_qat_batch_norm", "restate_attributes"),
        )
    ]


@hookimpl
def qconvert_operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    if (format, direction) != ("torch", "write"):
        return {}
    from qconvert.formats.torch.writers import WRITERS

    return WRITERS
