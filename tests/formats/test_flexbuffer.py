"""FlexBuffers: what the library writes is read, and damaged ones are one error within the limits."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flatbuffers import flexbuffers
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from qconvert import QConvertError
from qconvert.errors import InvalidModelError
from qconvert.formats.reading.flexbuffer import decode_flexbuffer, encode_flexbuffer

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary(max_size=20)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12)


@pytest.mark.property
@settings(max_examples=150)
@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert decode_flexbuffer(encode_flexbuffer(value)) == value


def test_vectors_of_one_type() -> None:
    builder = flexbuffers.Builder()
    with builder.Map():
        builder.Key("typed")
        builder.TypedVectorFromElements([1, -2, 3])
        builder.Key("fixed")
        builder.FixedTypedVectorFromElements([1.5, 2.5])
        builder.Key("flags")
        builder.TypedVectorFromElements([True, False])
        builder.Key("apart")
        builder.IndirectInt(-7)
        builder.Key("far")
        builder.IndirectFloat(3.25)
    data = bytes(builder.Finish())
    assert decode_flexbuffer(data) == {"typed": [1, -2, 3], "fixed": [1.5, 2.5], "flags": [True, False], "apart": -7, "far": 3.25}


@pytest.mark.property
@settings(max_examples=300)
@given(
    st.binary(min_size=0, max_size=60)
    | st.tuples(VALUES, st.binary(min_size=1, max_size=3), st.integers(0, 400)).map(lambda item: patched(*item))
)
def test_damaged_ones_are_one_error(data: bytes) -> None:
    try:
        decode_flexbuffer(data)
    except QConvertError as error:
        assert "FlexBuffer" in str(error)


def patched(value: Any, patch: bytes, place: int) -> bytes:
    data = encode_flexbuffer(value)
    place %= len(data)
    return data[:place] + patch + data[place + len(patch) :]


def nested(levels: int, width: int) -> bytes:
    """Vectors of `width` references to the same vector, `levels` deep: width ** levels values in few bytes."""
    data, below, kind = b"\1", 1, 1 << 2  # the number 1, of a byte
    for level in range(levels):
        start = len(data) + 1
        slots = bytes(
            start + index - (start - 1 - below if level else 0) if level == 0 else start + index - below for index in range(width)
        )
        data += bytes([width]) + (bytes([1] * width) if level == 0 else slots) + bytes([kind] * width)
        below, kind = start, 10 << 2
    return data + bytes([len(data) - below, kind, 1])


@pytest.mark.parametrize(("levels", "is_refused"), [(3, False), (14, True), (30, True)])
def test_values_that_share_what_they_hold_are_bounded(levels: int, is_refused: bool) -> None:
    data = nested(levels, 4 if levels < 20 else 1)
    started = time.process_time()
    if is_refused:
        with refused(InvalidModelError, "damaged-flexbuffer"):
            decode_flexbuffer(data)
    else:
        assert decode_flexbuffer(data) == [[[1] * 4] * 4] * 4
    assert time.process_time() - started < 2
