"""The entry points of a file: one of them chosen, by the key of its signature."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

from qconvert.errors import OptionError, UnsupportedError
from qconvert.formats.flatbuffers import TooLargeError, pack_model, unpack_view
from qconvert.formats.tflite.schema import root
from qconvert.formats.tflite.verify import verify

__all__ = ["select_signature", "signature_keys"]

_IDENTIFIER = b"TFL3"


def signature_keys(model: Any) -> list[str]:
    """The keys of the signatures of a model, in order."""
    return [(found.signatureKey or b"").decode("utf-8", "replace") for found in model.signatureDefs]


def select_signature(data: mmap.mmap | bytes, key: str) -> mmap.mmap | bytes:
    """The file with the subgraph of one signature first, and without other signatures.

    Args:
        data: a whole file, of any content.
        key: of the signature; "" for the file as it is.

    Raises:
        InvalidModelError: the file is damaged.
        OptionError: there is no such signature, or it stands twice.
        UnsupportedError: the file has data after the FlatBuffer, whose offsets would have to be written again.
    """
    if not key:
        return data
    verify(data)
    model = root(data)
    places = [place for place, known in enumerate(signature_keys(model)) if known == key]
    if len(places) != 1:
        listed = ", ".join(map(repr, signature_keys(model)[:8])) or "none"
        what = f"the model has no signature {key!r}" if not places else f"{len(places)} signatures have the key {key!r}"
        each = " `qconvert convert --signature all` writes a file for each; this option chooses one." if key == "all" else ""
        raise OptionError(what, remedy=f"The file has: {listed}.{each}", rule="unknown-signature")
    if not model.signatureDefs[places[0]].subgraphIndex and len(model.signatureDefs) == 1:
        return data
    if any(buffer.offset > 1 for buffer in model.buffers):
        raise UnsupportedError(
            "the file has data after its FlatBuffer; choosing one of several signatures of such a file is not covered",
            rule="data-after-flatbuffer",
        )
    return _swap_subgraphs(unpack_view(model), places[0])


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
    try:
        return pack_model(model, _IDENTIFIER)
    except TooLargeError as error:
        raise UnsupportedError(
            "the file is 2 GB or larger; choosing one of several signatures of such a file is not covered", rule="file-too-large"
        ) from error


def _subgraph_fields(model: Any) -> Iterator[tuple[Any, str]]:
    """Options of operators that name a subgraph, and the field that does."""
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or ():
            for options in filter(None, (operator.builtinOptions, operator.builtinOptions2)):
                for field in options.schema.fields(options.kind):
                    if "Subgraph" in field.name or field.name == "subgraph":
                        yield options, field.name
