"""Tables that share what hangs on them: a little is fine, but no small file may stand for an endless walk."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import pytest
from ai_edge_litert import schema_py_generated as schema
from refusals import refused

from qconvert.errors import InvalidModelError
from qconvert.formats.tflite.schema import TFLITE
from qconvert.formats.tflite.verify import verify

pytestmark = pytest.mark.litert


def shared_model(subgraphs: int, tensors: int, name: bytes) -> bytes:
    """A model with `subgraphs` offsets to one subgraph, which has `tensors` offsets to one tensor, which has a name."""
    data = bytearray(8)

    def table(slot: int) -> int:
        """Appends a table with one field, at `slot`, right before what it refers to; returns its position."""
        vtable = struct.pack(f"<{slot // 2 + 1}H", slot + 2, 8, *([0] * (slot // 2 - 2)), 4)
        data.extend(vtable + bytes(-len(vtable) % 4))
        data.extend(struct.pack("<iI", len(vtable) + -len(vtable) % 4, 4))
        return len(data) - 8

    def vector(count: int) -> int:
        data.extend(struct.pack("<I", count) + bytes(4 * count))
        return len(data) - 4 * count

    def fill(start: int, count: int, target: int) -> None:
        struct.pack_into(f"<{count}I", data, start, *range(target - start, target - start - 4 * count, -4))

    model, first = table(8), vector(subgraphs)
    fill(first, subgraphs, (subgraph := table(4)))
    second = vector(tensors)
    fill(second, tensors, table(10))
    data.extend(struct.pack("<I", len(name)) + name)
    struct.pack_into("<I4s", data, 0, model, b"TFL3")
    assert subgraph < second
    return bytes(data)


#: Seconds. What grows faster than the file takes minutes; how fast a machine is does not matter here.
LIMIT = 10


def seconds_to_refuse(data: bytes, repeats: int = 3) -> float:
    """Processor time, the best of a few, so that a busy machine does not fail the test."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        with refused(InvalidModelError, "damaged-file"):
            verify(data)
        seconds.append(time.process_time() - start)
        if seconds[-1] < 0.7:
            break
    return min(seconds)


def test_sharing_in_moderation_passes() -> None:
    data = shared_model(3, 5, b"shared")
    verify(data)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    assert [[tensor.name for tensor in subgraph.tensors] for subgraph in model.subgraphs] == [[b"shared"] * 5] * 3


@pytest.mark.parametrize(
    ("subgraphs", "tensors", "length"),
    [
        (1000, 1000, 1),  # 8 KB that a walk would take for a million tensors
        (1_200_000, 1_200_000, 1),  # 10 MB, 10^12 tensors
        (1, 1000, 100_000),  # a name copied a thousand times
        (1, 5000, 9_900_000),  # 10 MB, 50 GB of names
    ],
)
def test_sharing_without_end_is_refused(subgraphs: int, tensors: int, length: int) -> None:
    data = shared_model(subgraphs, tensors, b"n" * length)
    assert seconds_to_refuse(data) < LIMIT


def tables_with_own_vtables(vtables: list[bytes]) -> bytes:
    """A model with a subgraph of as many tensors, each with nothing but its vtable after it."""
    count = len(vtables)
    data = shared_model(1, count, b"")[: -8 - 12 - 4]  # without the tensor
    start = len(data) - 4 * count
    size = 4 + len(vtables[0])
    offsets = struct.pack(f"<{count}I", *(4 * count + (size - 4) * i for i in range(count)))
    return data[:start] + offsets + b"".join(struct.pack("<i", -4) + vtable for vtable in vtables)


def test_ten_megabytes_of_equal_vtables() -> None:
    data = tables_with_own_vtables([struct.pack("<HH", 4, 0)] * 700_000)
    assert seconds_to_refuse(data) < LIMIT


def test_ten_megabytes_of_different_vtables() -> None:
    """Each says other things about Tensor.type and Tensor.buffer."""
    vtables = [struct.pack("<10H", 20, 0, 0, 4 + i % 500, 4 + i // 500, 0, 0, 8 + i % 7, 0, 0) for i in range(350_000)]
    assert seconds_to_refuse(tables_with_own_vtables(vtables)) < LIMIT


def different_operators(count: int, tail: int = 100) -> bytes:
    """A model of `count` operators, each with a vtable unlike the others, in which every field is present and empty."""
    random_ = random.Random(count)
    slots = TFLITE.fields("Operator")[-1].slot // 2 - 1
    size = 4 + 2 * slots
    unit = size + 6 + tail
    data = bytearray(shared_model(1, count, b"")[: -8 - 12 - 4])
    subgraph = schema.Model.GetRootAs(data, 0).Subgraphs(0)._tab
    vtable = subgraph.Pos - struct.unpack_from("<i", data, subgraph.Pos)[0]
    start = len(data) - 4 * count
    # SubGraph.operators is at slot 10; a longer vtable needs a place of its own, after the operators.
    struct.pack_into(f"<{count}I", data, start, *(4 * count + (unit - 4) * i + size + 2 for i in range(count)))
    for _ in range(count):
        data += struct.pack(f"<{slots + 2}H", size, 0, *random_.choices(range(4, tail - 8), k=slots)) + bytes(2)
        data += struct.pack("<i", size + 2) + bytes(tail)
    struct.pack_into("<i", data, subgraph.Pos, subgraph.Pos - len(data))
    data += struct.pack("<6H", 12, 8, 0, 0, 0, struct.unpack_from("<H", data, vtable + 4)[0])
    return bytes(data)


def test_ten_megabytes_of_operators_with_different_vtables() -> None:
    """The costliest vtables that there are, in time and, as what they say is kept, in memory."""
    data = different_operators(74_000)
    assert 9e6 < len(data) < 11e6
    assert seconds_to_refuse(data) < LIMIT
    data = different_operators(15_000)
    tracemalloc.start()  # which makes everything several times slower
    seconds_to_refuse(data, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(data)


def test_different_vtables_in_moderation_pass() -> None:
    data = different_operators(60)
    verify(data)
    assert len(schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0)).subgraphs[0].operators) == 60


def test_one_buffer_with_data_outside_met_over_and_over() -> None:
    count = 2_400_000
    head = bytearray(struct.pack("<I4s7HHiI", 24, b"TFL3", 14, 8, 0, 0, 0, 0, 4, 0, 16, 4) + struct.pack("<I", count))
    start = len(head)
    target = start + 4 * count + 12
    offsets = struct.pack(f"<{count}I", *range(target - start, target - start - 4 * count, -4))
    data = bytes(head) + offsets + struct.pack("<6Hi", 10, 20, 0, 4, 12, 0, 12) + bytes(16)
    assert seconds_to_refuse(data) < LIMIT


def test_limit_of_tables() -> None:
    data = shared_model(3, 5, b"shared")
    # Model with its vector, 3 subgraphs with theirs, 15 tensors with names: 38; 3 vtables of 3 + 1 + 4 slots, each counted
    # for its 2 and 4 for each slot and one more: 6 + 4 * 11.
    verify(data, max_tables=88)
    with refused(InvalidModelError, "too-many-tables", holds=(87,)):
        verify(data, max_tables=87)


@pytest.mark.cross_section
def test_a_model_whose_writer_shares_no_vtables() -> None:
    vtables = [struct.pack("<10H", 20, 0, 0, 4, 4, 0, 0, 4, 0, 0)] * 10_000
    data = tables_with_own_vtables(vtables) + bytes(4)
    verify(data)
    assert len(schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0)).subgraphs[0].tensors) == 10_000
