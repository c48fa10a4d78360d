"""The file of scales that PPQ calls MNN's (ppq/parser/mnn_exporter.py): `<tensor> input_tensor_0` and `<tensor> output_tensor_0`, flat.

`<tensor>` is a result of a Conv or Add; `shape` is the input of the network. Scales are symmetric, of int8.
"""

from __future__ import annotations

import re
from typing import Any

from qconvert.encodings import Encoding, Encodings, Place
from qconvert.errors import InvalidModelError
from qconvert.files.documents import fail, number
from qconvert.formats.mnn.activations import activation_quantization

__all__ = ["is_ppq", "read_ppq"]

_KEY = re.compile(r"(.+) (input|output)_tensor_(\d{1,9})", re.DOTALL)
_BESIDE = "shape"


def is_ppq(document: Any) -> bool:
    """Whether a JSON document looks like such a file."""
    keys = document.keys() - {_BESIDE} if isinstance(document, dict) else ()
    return bool(keys) and all(_KEY.fullmatch(key) for key in keys)


def read_ppq(document: dict[str, Any]) -> Encodings:
    """The encodings of a document of which is_ppq() holds.

    Raises:
        InvalidModelError: a scale is no positive number.
    """
    entries: dict[Place, Encoding] = {}
    for key, value in document.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        scale = number(value, repr(key))
        place = Place(match[1], match[2], int(match[3]))
        if place in entries:
            fail(repr(key), "the same number of a tensor occurs twice, written differently", rule="duplicate-name")
        if scale != 0:
            entries[place] = Encoding(activation_quantization([scale], 0, repr(key)), origin="PPQ")
    if not entries:
        raise InvalidModelError("every scale is 0", remedy="Calibrate the network in PPQ before it is written.", rule="all-scales-zero")
    return Encodings(entries, "PPQ's scales for MNN", weights="max-abs")
