"""The verifier of .tflite files: real models pass, and what passes can be walked whatever its bytes are."""

from __future__ import annotations

import mmap
import random
import struct
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import flatbuffers
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qconvert.errors import InvalidModelError
from qconvert.formats.tflite.schema import TFLITE
from qconvert.formats.tflite.verify import verify

pytestmark = pytest.mark.litert

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "fixtures"
MODELS = sorted(FIXTURES.glob("*.tflite")) + sorted((ROOT.parent / "shared/models/tflite").glob("*.tflite"))
#: Structures of all kinds in few bytes, so that a random change often hits an offset.
SMALL = sorted((path for path in FIXTURES.glob("*.tflite") if path.stat().st_size < 120_000), key=lambda path: path.name)


@cache
def contents(path: Path) -> bytes:
    return path.read_bytes()


def walk(data: bytes) -> schema.ModelT:
    """Every accessor of every table, through the generated object API."""
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))


def accepts(data: bytes) -> bool:
    """Whether verify() accepts `data`; if so, the walk must not raise."""
    try:
        verify(data)
    except InvalidModelError as error:
        assert error.reason
        return False
    walk(data)
    return True


def reason_for(data: bytes) -> str:
    with pytest.raises(InvalidModelError) as caught:
        verify(data)
    return caught.value.reason


def packed(model: schema.ModelT) -> bytearray:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytearray(builder.Output())


def one_op_model(operator: schema.OperatorT, tensor: schema.TensorT | None = None) -> bytearray:
    subgraph = schema.SubGraphT(tensors=[tensor or schema.TensorT(name="x")], operators=[operator])
    return packed(schema.ModelT(version=3, subgraphs=[subgraph], buffers=[schema.BufferT()]))


def the_operator(data: bytes | bytearray) -> schema.Operator:
    return schema.Model.GetRootAs(data, 0).Subgraphs(0).Operators(0)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_real_models_verify(path: Path) -> None:
    data = contents(path)
    seconds = min(timed(data) for _ in range(3))
    assert seconds < 0.03
    assert walk(data).subgraphs


def timed(data: bytes) -> float:
    start = time.perf_counter()
    verify(data)
    return time.perf_counter() - start


def test_there_are_models() -> None:
    assert len(SMALL) >= 5
    assert len(list(FIXTURES.glob("*.tflite"))) >= 16


def test_no_table_contains_its_own_kind() -> None:
    def depth(table: str, above: tuple[str, ...]) -> int:
        assert table not in above
        below = [0]
        for field in TFLITE.fields(table):
            members = TFLITE.members(field.detail).values() if field.base_type == "union" else [field.detail] * ("table" in field.base_type)
            below += [depth(member, (*above, table)) for member in members]
        return 1 + max(below)

    assert depth("Model", ()) == 6


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_truncation(path: Path) -> None:
    data = contents(path)
    random_ = random.Random(path.stem)
    lengths = {*range(0, 200, 3), *(random_.randrange(len(data)) for _ in range(40)), *range(len(data) - 20, len(data))}
    accepted = [length for length in lengths if accepts(data[:length])]
    assert all(length > len(data) - 20 for length in accepted)  # only padding may be missing


@pytest.mark.parametrize("seed", range(50))
def test_random_bytes(seed: int) -> None:
    noise = random.Random(seed).randbytes(2000)
    assert not accepts(noise)
    assert not accepts(noise[:4] + b"TFL3" + noise)
    accepts(b"\x10\0\0\0TFL3" + bytes(8) + noise)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"TFL3", "8 bytes, this one has 4"),
        (b"\x08\x08\x12\x07pytorch" + bytes(9), "an ONNX file"),
        (b"PK\x03\x04" + bytes(20), "a zip archive"),
        (b"GGUF" + bytes(20), "a GGUF file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "an HDF5 file"),
        (b"\x80\x02}q\0" + bytes(9), "a Python pickle"),
        (b"\x20" + bytes(7) + b'{"a":{}}', "a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "HTML"),
    ],
)
def test_other_files_are_named(data: bytes, words: str) -> None:
    assert words in reason_for(data)


def test_wrong_identifier_is_shown() -> None:
    assert reason_for(b"\x1c\0\0\0ABCD" + bytes(40)) == "this is not a TFLite file: bytes 4 to 7 are b'ABCD' instead of b'TFL3'"


@pytest.mark.cross_section
def test_vector_past_the_end_names_field_place_and_excess() -> None:
    data = one_op_model(schema.OperatorT(inputs=[1, 2, 3]))
    table = the_operator(data)._tab
    place = table.Vector(table.Offset(6)) - 4
    struct.pack_into("<I", data, place, (len(data) - place - 4) // 4 + 25)
    excess = place + 4 + 4 * ((len(data) - place - 4) // 4 + 25) - len(data)
    assert reason_for(data) == f"vector Operator.inputs at byte {place} runs {excess} bytes past the end of the file"


@pytest.mark.parametrize(
    ("model", "value", "words"),
    [
        (schema.ModelT(description="hello"), b"\x05\0\0\0hello", "string Model.description"),
        (schema.ModelT(metadataBuffer=[7, 8]), b"\x02\0\0\0\x07\0\0\0", "vector Model.metadata_buffer"),
        (schema.ModelT(metadata=[schema.MetadataT(name="abc")]), b"\x03\0\0\0abc", "string Metadata.name"),
        (schema.ModelT(signatureDefs=[schema.SignatureDefT(signatureKey="run")]), b"\x03\0\0\0run", "SignatureDef.signature_key"),
        (schema.ModelT(buffers=[schema.BufferT(data=list(b"weights"))]), b"\x07\0\0\0weights", "vector Buffer.data"),
        (schema.ModelT(externalBufferGroups=[schema.ExternalBufferGroupT(name="grp")]), b"\x03\0\0\0grp", "ExternalBufferGroup.name"),
        (schema.ModelT(externalBuffers=[schema.ExternalBufferT(packing="row")]), b"\x03\0\0\0row", "string ExternalBuffer.packing"),
    ],
)
def test_lengths_of_every_part_of_a_model(model: schema.ModelT, value: bytes, words: str) -> None:
    data = packed(model)
    verify(data)
    place = data.index(value)
    for length in (len(data), 2**31 - 1, 2**31, 2**32 - 1):
        struct.pack_into("<I", data, place, length)
        reason = reason_for(data)
        assert words in reason and f"at byte {place} runs" in reason


def options_model() -> bytearray:
    sparsity = schema.SparsityParametersT(
        traversalOrder=[0, 1],
        dimMetadata=[
            schema.DimensionMetadataT(
                format=1,
                arraySegmentsType=schema.SparseIndexVector.Int32Vector,
                arraySegments=schema.Int32VectorT(values=[0, 77]),
                arrayIndicesType=schema.SparseIndexVector.Uint16Vector,
                arrayIndices=schema.Uint16VectorT(values=[55, 66]),
            )
        ],
    )
    quantization = schema.QuantizationParametersT(
        scale=[0.5],
        detailsType=schema.QuantizationDetails.CustomQuantization,
        details=schema.CustomQuantizationT(custom=list(b"custom")),
    )
    tensor = schema.TensorT(name="t", sparsity=sparsity, quantization=quantization, variantTensors=[schema.VariantSubTypeT(shape=[44, 33])])
    operator = schema.OperatorT(
        builtinOptionsType=schema.BuiltinOptions.VarHandleOptions,
        builtinOptions=schema.VarHandleOptionsT(container="holder", sharedName="shared"),
        builtinOptions2Type=schema.BuiltinOptions2.StableHLOCompositeOptions,
        builtinOptions2=schema.StableHLOCompositeOptionsT(name="composite"),
    )
    return one_op_model(operator, tensor)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (struct.pack("<3I", 2, 0, 77), "vector Int32Vector.values"),
        (struct.pack("<IHH", 2, 55, 66), "vector Uint16Vector.values"),
        (b"\x06\0\0\0custom", "vector CustomQuantization.custom"),
        (struct.pack("<3I", 2, 44, 33), "vector VariantSubType.shape"),
        (b"\x06\0\0\0holder", "string VarHandleOptions.container"),
        (b"\x09\0\0\0composite", "string StableHLOCompositeOptions.name"),
        (struct.pack("<If", 1, 0.5), "vector QuantizationParameters.scale"),
    ],
)
def test_unions_and_nested_tables_are_entered(value: bytes, words: str) -> None:
    data = options_model()
    verify(data)
    struct.pack_into("<I", data, data.index(value), 0x10000000)
    assert reason_for(data).startswith(words)


def test_union_of_an_unknown_type_passes() -> None:
    """A newer schema has more kinds of options; which operators are covered is the reader's to say."""
    data = options_model()
    table = the_operator(data)._tab
    data[table.Pos + table.Offset(10)] = 250
    verify(data)
    walk(data)


def test_vector_without_items_at_the_very_end() -> None:
    data = packed(schema.ModelT(metadataBuffer=[1])) + bytes(4)
    table = schema.Model.GetRootAs(data, 0)._tab
    place = table.Pos + table.Offset(14)
    struct.pack_into("<I", data, place, len(data) - 4 - place)
    assert accepts(bytes(data))
    assert reason_for(data[:-1]).endswith("1 bytes past the end of the file")


def test_vector_that_ends_the_file() -> None:
    data = packed(schema.ModelT(metadataBuffer=[1])) + struct.pack("<3I", 2, 8, 9)
    table = schema.Model.GetRootAs(data, 0)._tab
    place = table.Pos + table.Offset(14)
    struct.pack_into("<I", data, place, len(data) - 12 - place)
    verify(data)
    assert list(walk(data).metadataBuffer) == [8, 9]
    start = len(data) - 12
    assert reason_for(data[:-1]) == f"vector Model.metadata_buffer at byte {start} runs 1 bytes past the end of the file"


@pytest.mark.parametrize("length", [0, 2, 3, 5, 0xFFFE, 0xFFFF])
def test_lengths_of_vtables(length: int) -> None:
    data = one_op_model(schema.OperatorT(inputs=[1]))
    table = the_operator(data)._tab
    vtable = table.Pos - struct.unpack_from("<i", data, table.Pos)[0]
    struct.pack_into("<H", data, vtable, length)
    assert "the vtable of" in reason_for(data)


@pytest.mark.parametrize("distance", [2**31 - 1, -(2**31), 10**6, -(10**6)])
def test_vtables_outside_the_file(distance: int) -> None:
    data = one_op_model(schema.OperatorT(inputs=[1]))
    struct.pack_into("<i", data, the_operator(data)._tab.Pos, distance)
    assert ("before the start" if distance > 0 else "past the end") in reason_for(data)


@pytest.mark.parametrize("length", [1, 5])
def test_a_vtable_cut_within_its_length_or_its_last_slot(length: int) -> None:
    data = struct.pack("<I4si3H", 8, b"TFL3", -4, 6, 4, 0)
    assert accepts(data)
    assert reason_for(data[: 12 + length]) == "the vtable of Model at byte 12 runs 1 bytes past the end of the file"


@pytest.mark.parametrize("slot", [4, 6, 8])
def test_fields_of_a_table_that_ends_the_file(slot: int) -> None:
    """The last field of the root table, a scalar, lies after the end by one byte."""
    vtable = struct.pack("<5H", 10, 4, *(20 if at == slot else 0 for at in (4, 6, 8)))
    data = struct.pack("<I4s", 20, b"TFL3") + vtable.ljust(12, b"\0") + struct.pack("<i", 12) + bytes(20)
    assert accepts(data)
    assert reason_for(data[:-1]) == "table Model at byte 20 runs 1 bytes past the end of the file"


def outside_model(path: Path, total: int, **place: int) -> mmap.mmap:
    """A sparse file of `total` bytes that begins with a FlatBuffer whose buffer or operator has data outside."""
    if "largeCustomOptionsOffset" in place:
        head = one_op_model(schema.OperatorT(**place))
    else:
        head = packed(schema.ModelT(version=3, buffers=[schema.BufferT(**place)]))
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(total)
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


@pytest.mark.parametrize(("offset", "size"), [("offset", "size"), ("largeCustomOptionsOffset", "largeCustomOptionsSize")])
def test_data_behind_the_flatbuffer(tmp_path: Path, offset: str, size: str) -> None:
    total = 5 * 2**30
    with outside_model(tmp_path / "fits", total, **{offset: total - 16, size: 16}) as data:
        verify(data)
    with outside_model(tmp_path / "one", total, **{offset: 1, size: 2**40}) as data:
        verify(data)  # an offset of 0 or 1 is not valid, so nobody follows it
    with outside_model(tmp_path / "beyond", total, **{offset: total - 16, size: 17}) as data:
        assert f"at byte {total - 16} runs 1 bytes past the end of the file" in reason_for(data)
    with outside_model(tmp_path / "far", total, **{offset: 2**64 - 1, size: 2**64 - 1}) as data:
        assert f"at byte {2**64 - 1} runs" in reason_for(data)


def test_buffers_that_share_data_after_the_flatbuffer() -> None:
    """A file of some bytes would become one of as many times these."""
    for count in (1, 4):
        head = packed(schema.ModelT(version=3, buffers=[schema.BufferT(offset=4096, size=10**6) for _ in range(count)]))
        data = head.ljust(4096, b"\0") + bytes(10**6)
        if count == 1:
            verify(data)
        else:
            assert "refer to the same parts over and over" in reason_for(data)


def test_a_flatbuffer_ends_at_2_gb(tmp_path: Path) -> None:
    """After 4 GB the accessors could not even state a position."""
    with outside_model(tmp_path / "model", 5 * 2**30, offset=0, size=0) as data:
        verify(data)
        head = bytearray(data[:4096])
    struct.pack_into("<I", head, 0, 2**32 - 1)
    with (tmp_path / "model").open("r+b") as stream:
        stream.write(head)
    with (tmp_path / "model").open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert reason_for(data).endswith("bytes past the 2 GB that a FlatBuffer may have")


def test_every_kind_of_input_and_a_mapping_that_can_be_closed(tmp_path: Path) -> None:
    model = contents(SMALL[0])
    damaged = model[: len(model) // 2]
    (tmp_path / "damaged").write_bytes(damaged)
    for data in (model, bytearray(model), memoryview(model), memoryview(model[: len(model) // 4 * 4]).cast("I")):
        verify(data)
    with (tmp_path / "damaged").open("rb") as stream:
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    with pytest.raises(InvalidModelError) as caught:
        verify(mapping)
    mapping.close()
    assert "past the end of the file" in caught.value.reason and "fetch" in caught.value.remedy


@pytest.mark.end_to_end
def test_importing_the_verifier_is_light() -> None:
    code = "import qconvert.formats.tflite.verify, sys; print(*sorted({'ai_edge_litert', 'flatbuffers', 'onnx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == ""


EXTREMES = (0, 1, 2, 4, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)
CHANGES = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.one_of(st.sampled_from(EXTREMES), st.integers(0, 2**32 - 1)), st.sampled_from("BHI")),
    min_size=1,
    max_size=4,
)


@cache
def structure(path: Path) -> tuple[int, ...]:
    """Bytes of a model outside its weights, where a change matters."""
    data = contents(path)
    model = schema.Model.GetRootAs(data, 0)
    weights: set[int] = set()
    for index in range(model.BuffersLength()):
        buffer = model.Buffers(index)
        if not buffer.DataIsNone():
            start = buffer._tab.Vector(buffer._tab.Offset(4))
            weights.update(range(start, start + buffer.DataLength()))
    return tuple(place for place in range(len(data)) if place not in weights)


@pytest.mark.property
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(changes=CHANGES)
def test_changed_models_are_refused_or_can_be_walked(path: Path, changes: list[tuple[float, int, str]]) -> None:
    data = bytearray(contents(path))
    places = structure(path)
    for where, value, width in changes:
        size = struct.calcsize(width)
        place = min(places[int(where * len(places))], len(data) - size) // size * size
        struct.pack_into(f"<{width}", data, place, value % 2 ** (8 * size))
    accepts(bytes(data))
