"""A checkpoint in blocks (GPTQ, AWQ, compressed-tensors, MLX …) as a .gguf file, every integer and scale kept.

The tokenizer and the numbers of the architecture come from a template: a .gguf file of the same model, as llama.cpp's
convert_hf_to_gguf.py writes it. Its tensors give the mapping of names and the order of rows: llama.cpp reorders the rows of queries and
keys, and adds 1 to some norms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import (
    Array,
    BlockWeight,
    CheckpointSource,
    ConvertedLayer,
    InvalidModelError,
    OptionError,
    Repacked,
    UnsupportedError,
    convert_layer,
    format_count,
    map_file,
    map_in_order,
    quote_nearest,
    refusal,
    require_package,
)
from qconvert_gguf.blocks import KINDS, TYPES, WRITTEN, pack_weight, unpack_weight
from qconvert_gguf.container import GGUF, PLAIN, Stored, decode_numbers, read_header, tensor_bytes
from qconvert_gguf.places import order_of_heads

_TITLE = "GGUF"
#: The least cosine similarity of weights and those of the template.
_LEAST = 0.5
#: Fields of a template that are not copied: the written file has its own.
_OWN = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
#: Type -> llama.cpp's file_type, of a file with mostly tensors of this type.
_FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "MXFP4": 38}
_TEMPLATE = "Name a .gguf file of the same model, as convert_hf_to_gguf.py of llama.cpp writes it: --template model-f16.gguf."


@dataclass(frozen=True, slots=True)
class _Template:
    """A .gguf file of the same model.

    Attributes:
        path, data: the file.
        metadata: its fields, without arrays.
        tensors: by name.
    """

    path: Path
    data: Any
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    @classmethod
    def of(cls, path: str) -> _Template:
        """Read a template. Raise QConvertError if the file is damaged, and OptionError without a path."""
        if not path:
            raise OptionError(
                "a checkpoint has no tokenizer and no description of the architecture, which a .gguf file needs",
                remedy=_TEMPLATE,
                rule="template-missing",
            )
        data = map_file(Path(path))
        metadata, tensors = read_header(data)
        if metadata.get("split.count"):
            raise UnsupportedError("the template is one of several files", file=path, remedy=_TEMPLATE, rule="form-not-covered")
        return cls(Path(path), data, metadata, {item.name: item for item in tensors})

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def number(self, name: str) -> int:
        """Return a number of the architecture; 0 if it is not stated."""
        found = self.metadata.get(f"{self.architecture}.{name}", 0)
        return found if type(found) is int and 0 < found < 2**20 else 0

    def values(self, name: str) -> Array:
        """Return the dequantized values of a tensor, float32. Raise UnsupportedError for a type that is not read."""
        stored = self.tensors[name]
        data = tensor_bytes(self.data, stored)
        if stored.type in PLAIN:
            return decode_numbers(data, stored.type).reshape(stored.shape).astype(np.float32)
        if stored.type not in TYPES:
            raise UnsupportedError(
                f"the template has the type {stored.type}, which is not read",
                where=repr(name),
                file=str(self.path),
                remedy=_TEMPLATE,
                rule="type-not-covered",
            )
        return unpack_weight(data, stored.type, stored.shape).values().reshape(stored.shape)


def repack(checkpoint: CheckpointSource, path: Path, options: Mapping[str, Any], progress: Callable[[str, int, int], None]) -> Repacked:
    """Write a checkpoint as a .gguf file.

    Args:
        checkpoint: the source.
        path: the file to write.
        options: "template" and "requantize".
        progress: is called with ("tensors", done, total).

    Raises:
        OptionError: there is no template.
        InvalidModelError: template and checkpoint are of different models.
        UnsupportedError: weights have no place in blocks of GGUF; reasons and shares are in the error.
    """
    require_package(*GGUF)
    from gguf import GGMLQuantizationType

    template = _Template.of(str(options.get("template") or ""))
    names = _names(checkpoint, template)
    work = _Work(checkpoint, template, names, requantize=bool(options.get("requantize")))
    writer = _make_writer(path, template)
    result, types, misfits = Repacked(), Counter[str](), list[ConvertedLayer]()
    try:
        for done, layer in enumerate(map_in_order(work.convert_tensor, list(template.tensors)), 1):
            progress("tensors", done, len(template.tensors))
            if layer.misfit is not None:
                misfits.append(layer)
            if misfits:
                continue
            ((type, data),) = layer.tensors.items()
            writer.add_tensor(layer.name, np.ascontiguousarray(data), raw_dtype=GGMLQuantizationType[type])
            types[type] += 1
            result.add(layer.facts)
        if misfits:
            raise refusal(misfits, _TITLE, len(checkpoint.layers))
        _finish_file(writer, types)
    finally:
        writer.close()
    kept = [name for name in template.tensors if name not in names]
    result.notes = [f"note: {note}" for note in checkpoint.notes]
    result.notes.append(f"note: tensors of the file: {', '.join(f'{count} of {name}' for name, count in types.most_common())}")
    if kept:
        result.notes.append(f"note: the checkpoint has no tensors for {quote_nearest(kept, ())}: the template's are taken")
    return result


def _names(checkpoint: CheckpointSource, template: _Template) -> dict[str, str]:
    """Return name in the template -> layer or tensor of the checkpoint. Raise InvalidModelError for tensors without a name."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = next((arch for arch, name in MODEL_ARCH_NAMES.items() if name == template.architecture), None)
    blocks = template.number("block_count")
    if arch is None or not blocks:
        raise InvalidModelError(
            f"the architecture of the template is {template.architecture!r} of {blocks} blocks, which the package gguf does not know",
            file=str(template.path),
            rule="unknown-architecture",
        )
    table = get_tensor_name_map(arch, blocks)
    found: dict[str, str] = {}
    lost = []
    for item in (*checkpoint.layers, *checkpoint.plain):
        full = f"{item}.weight" if item in checkpoint.layers else item
        name = table.get_name(full, try_suffixes=(".weight", ".bias"))
        if name in template.tensors and name not in found:
            found[name] = item
        elif not full.endswith("inv_freq"):  # computed at run time
            lost.append(full)
    if lost:
        raise InvalidModelError(
            f"the checkpoint has {format_count(len(lost), 'tensor')} without a place in the template: "
            f"{quote_nearest(lost, list(template.tensors))}",
            remedy=_TEMPLATE,
            rule="unknown-tensor",
        )
    return found


class _Work:
    """Converts the tensors of the template with the values of the checkpoint; immutable, since threads call it."""

    def __init__(self, checkpoint: CheckpointSource, template: _Template, names: Mapping[str, str], *, requantize: bool) -> None:
        self._checkpoint, self._template, self._names, self._requantize = checkpoint, template, names, requantize
        self._adds_one = self._has_norms_plus_one()

    def _has_norms_plus_one(self) -> bool:
        """Return whether the norms of the template are those of the checkpoint plus one, as for Gemma; decided for all norms at once."""
        as_they_are = plus_one = 0.0
        for name, item in self._names.items():
            if name.endswith("norm.weight") and item in self._checkpoint.plain:
                values, own = self._checkpoint.plain[item].astype(np.float32), self._template.values(name)
                if values.shape == own.shape:
                    as_they_are += float(np.abs(values - own).sum())
                    plus_one += float(np.abs(values + 1 - own).sum())
        return plus_one < as_they_are

    def convert_tensor(self, name: str) -> ConvertedLayer:
        """Convert one tensor: ggml's type and its bytes or numbers."""
        item = self._names.get(name)
        stored = self._template.tensors[name]
        if item is None:
            data = tensor_bytes(self._template.data, stored)
            return ConvertedLayer(name, {stored.type: data.reshape(*stored.shape[:-1], -1)})
        own = self._template.values(name)
        if item in self._checkpoint.layers:
            weight = self._checkpoint.weight(item)
            rows = self._find_row_order(name, weight.values(), own)
            made = convert_layer(name, weight if rows is None else weight.rows(rows), _candidate_types(weight), requantize=self._requantize)
            self._checkpoint.release(item)
            return made
        numbers = self._checkpoint.plain[item]
        values = numbers.astype(np.float32)
        if values.ndim == 1 and self._adds_one and name.endswith("norm.weight"):
            return ConvertedLayer(name, {"F32": values + 1})
        rows = self._find_row_order(name, values, own)
        values = values if rows is None else values[rows]
        if values.ndim > 1 and numbers.dtype == np.float16:
            return ConvertedLayer(name, {"F16": values.astype(np.float16)})
        if values.ndim > 1 and numbers.dtype.name == "bfloat16":
            return ConvertedLayer(name, {"BF16": (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)})
        return ConvertedLayer(name, {"F32": values})  # llama.cpp has norms and biases in float32

    def _find_row_order(self, name: str, values: Array, own: Array) -> Array | None:
        """Return the order of rows that matches the template, or None for the own order. Raise InvalidModelError if no order matches."""
        if values.shape != own.shape:
            raise InvalidModelError(
                f"the shape is {list(values.shape)} in the checkpoint and {list(own.shape)} in the template",
                where=repr(name),
                rule="shape-differs",
            )
        orders: list[Array | None] = [None, *self._row_orders(name, len(values))]
        likeness = [_cosine_similarity(values if rows is None else values[rows], own) for rows in orders]
        best = int(np.argmax(likeness))
        if likeness[best] < _LEAST:
            raise InvalidModelError(
                f"the values are not those of the template (likeness {likeness[best]:.2f}): it is of another model, or has rows in an "
                "order that is not known",
                where=repr(name),
                remedy=_TEMPLATE,
                rule="values-differ",
            )
        return orders[best]

    def _row_orders(self, name: str, count: int) -> Iterator[Array]:
        """Yield llama.cpp's order of the rows of queries and keys."""
        part = name.split(".")[-2] if "." in name else ""
        heads = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}.get(part)
        size = self._template.number(heads) if heads else 0
        if size and count % (2 * size) == 0:
            yield order_of_heads(count, size)


def _cosine_similarity(values: Array, own: Array) -> float:
    """Return the cosine similarity of two tensors; 1 if both are zero."""
    first, second = values.reshape(-1), own.reshape(-1)
    size = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / size if size else 1.0 if not first.any() and not second.any() else 0.0


def _candidate_types(weight: BlockWeight) -> list[Any]:
    """Return the types that can store a weight: of its number of bits, or the next larger, and last a wider one for other zero points."""
    if weight.table is not None:
        names = ["MXFP4"]
    else:
        integers = [name for name in WRITTEN if name != "MXFP4"]
        bits = min((KINDS[name].bits for name in integers if KINDS[name].bits >= weight.bits), default=8)
        names = [name for name in integers if KINDS[name].bits == bits]
        wider = [name for name in integers if KINDS[name].bits > bits and name.endswith("_0")]
        names += sorted(wider, key=lambda name: KINDS[name].bits)[:1]
    return [(KINDS[name].needs, lambda made, type=name: {type: pack_weight(made, type)}) for name in names]


def _make_writer(path: Path, template: _Template) -> Any:
    """Return a writer with the fields of the template; a temporary file holds the tensors, to save memory."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    writer = GGUFWriter(path, template.architecture, use_temp_file=True)
    for name, field in GGUFReader(template.path).fields.items():
        if name.startswith(_OWN):
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    return writer


def _finish_file(writer: Any, types: Counter[str]) -> None:
    most = max((name for name in types if name in _FILE_TYPES), key=lambda name: types[name], default="")
    writer.add_file_type(_FILE_TYPES.get(most, 0))
    writer.add_quantization_version(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
