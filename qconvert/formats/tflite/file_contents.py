"""What a .tflite file holds around its subgraphs: entry points by the keys of signatures, metadata and attached files; and the list of its
operators for `qconvert inspect`.
"""

from __future__ import annotations

import base64
import io
import mmap
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from qconvert.errors import OptionError
from qconvert.files import map_file
from qconvert.formats.tflite.packing import pack_parts, unpack_model
from qconvert.formats.tflite.read_operators import indices, operator_names
from qconvert.formats.tflite.schema import decode_text
from qconvert.formats.tflite.verify import verified_root
from qconvert.graph.metadata import BASE64, SOURCE_FILES


def signature_keys(model: Any) -> list[str]:
    """The keys of the signatures of a model, in order."""
    return [decode_text(found.signatureKey) for found in model.signatureDefs]


def select_signature(data: mmap.mmap | bytes, key: str) -> mmap.mmap | bytes:
    """The file with the subgraph of one signature first, and without other signatures.

    Args:
        data: a whole file, of any content.
        key: of the signature; "" for the file as it is.

    Raises:
        InvalidModelError: the file is damaged.
        OptionError: there is no such signature, or it stands twice.
    """
    if not key:
        return data
    model = verified_root(data)
    places = [place for place, known in enumerate(signature_keys(model)) if known == key]
    if len(places) != 1:
        listed = ", ".join(map(repr, signature_keys(model)[:8]))
        if not listed:
            raise OptionError("the model has no signatures", remedy="Leave out --signature.", rule="unknown-signature")
        what = f"the model has no signature {key!r}" if not places else f"{len(places)} signatures have the key {key!r}"
        each = " `qconvert convert --signature all` writes a file for each; this option chooses one." if key == "all" else ""
        raise OptionError(what, remedy=f"The file has: {listed}.{each}", rule="unknown-signature")
    if not model.signatureDefs[places[0]].subgraphIndex and len(model.signatureDefs) == 1:
        return data
    return _swap_subgraphs(unpack_model(model, data), places[0])


def _swap_subgraphs(model: Any, place: int) -> bytes:
    """The file of a model after its first subgraph and that of a signature have changed places."""
    chosen = model.signatureDefs[place]
    number = chosen.subgraphIndex
    if not 0 <= number < len(model.subgraphs):
        raise OptionError(
            f"the signature {chosen.signatureKey!r} enters subgraph {number} of {len(model.subgraphs)}", rule="unknown-subgraph"
        )
    model.signatureDefs, chosen.subgraphIndex = [chosen], 0
    order = model.subgraphs
    order[0], order[number] = order[number], order[0]
    renamed = {0: number, number: 0}
    for options, name in _subgraph_fields(model):
        value = getattr(options, name)
        several = value is not None and not isinstance(value, int)
        setattr(options, name, [renamed.get(int(one), int(one)) for one in value] if several else renamed.get(value, value))
    return b"".join(pack_parts(model))


def _subgraph_fields(model: Any) -> Iterator[tuple[Any, str]]:
    """Options of operators that name a subgraph, and the field that does."""
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or ():
            for options in filter(None, (operator.builtinOptions, operator.builtinOptions2)):
                for field in options.schema.fields(options.table):
                    if "Subgraph" in field.name or field.name == "subgraph":
                        yield options, field.name


#: Larger contents are named by their size alone.
_LARGEST = 2**18
#: The end record of a ZIP archive and its longest comment.
_END_RECORD, _END_SPAN = b"PK\x05\x06", 22 + 2**16


def text_of(data: bytes) -> str:
    """A short text as it is, other data in base64; "<n> bytes" for what is above 256 KB."""
    text = data.rstrip(b"\0")
    if len(text) < 256 and text.isascii() and text.decode("ascii").isprintable():
        return text.decode("ascii")
    return BASE64 + base64.b64encode(data).decode("ascii") if len(data) <= _LARGEST else f"{len(data)} bytes"


def bytes_of(text: str) -> bytes | None:
    """What text_of() made a text of, without trailing zeros; None where it kept the size alone."""
    if text.startswith(BASE64):
        try:
            return base64.b64decode(text.removeprefix(BASE64), validate=True)
        except ValueError:  # a text that someone else put there
            return text.encode()
    return None if text.endswith(" bytes") and text[:-6].isdigit() else text.encode()


def read_files(data: mmap.mmap | bytes) -> dict[str, str]:
    """The files of the archive after the FlatBuffer, as entries of the graph's metadata; none if there is no readable archive."""
    if _END_RECORD not in data[-_END_SPAN:]:
        return {}
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            small = [info for info in archive.infolist() if info.file_size <= _LARGEST and not info.is_dir()]
            return {f"{SOURCE_FILES}{info.filename}": text_of(archive.read(info)) for info in small}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        return {}  # the model itself does not depend on what follows it


def append_files(stream: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Append an archive of the metadata's files to a FlatBuffer; nothing if there are none."""
    files = {key.removeprefix(SOURCE_FILES): bytes_of(text) for key, text in metadata.items() if key.startswith(SOURCE_FILES)}
    if not any(content is not None for content in files.values()):
        return
    import zipfile

    with zipfile.ZipFile(stream, "a") as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(zipfile.ZipInfo(name), content)  # its date is fixed, so equal graphs give equal files


class ListedOperator(NamedTuple):
    """An operator as a file has it: its name, a custom one's own, and the names of the tensors that it reads and writes; "" for none."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def contents(path: Path) -> dict[str, Any]:
    """Schema version, description and subgraphs, and the operators of all subgraphs with their counts.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no TFLite file, or is damaged.
    """
    model = verified_root(map_file(path))
    found = Counter(name for subgraph in model.subgraphs or () for name in operator_names(model, subgraph))
    return {
        "schema version": model.version,
        "producer": decode_text(model.description),
        **({"subgraphs": len(model.subgraphs)} if len(model.subgraphs or ()) > 1 else {}),
        **({"signatures": signature_keys(model)} if model.signatureDefs else {}),
        "operators": dict(found.most_common()),
    }


def listed_operators(path: Path) -> tuple[ListedOperator, ...]:
    """The operators of all subgraphs in order, those that qconvert does not read too.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no TFLite file, or is damaged.
    """
    model = verified_root(map_file(path))
    found = []
    for place, subgraph in enumerate(model.subgraphs or ()):
        names = [decode_text(tensor.name) for tensor in subgraph.tensors or ()]
        for name, operation in zip(operator_names(model, subgraph), subgraph.operators or (), strict=True):
            sides = (indices(side, names, f"{name} of subgraph {place}") for side in (operation.inputs, operation.outputs))
            found.append(ListedOperator(name, *map(tuple, sides)))
    return tuple(found)
