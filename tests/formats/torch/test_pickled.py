"""The whitelisting unpickler: data alone, and nothing runs."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.packed_parameters import unpack_parameters
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor
from qconvert.formats.torch.unpickler import unpickle


def _nothing(key: str) -> Any:
    raise AssertionError(f"storage {key} was asked for")


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol: int) -> None:
    value = collections.OrderedDict(a=[1, 2.5, None, True], b=("text", 2**70, -3), c={"x": [(), [], {}]})
    assert unpickle(pickle.dumps(value, protocol), _nothing, "x") == dict(value)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_calls_a_command_runs_nothing(tmp_path: Path, protocol: int) -> None:
    with refused(UnsupportedError, "name-not-allowed", holds=(".system",)):
        unpickle(pickle.dumps(_Runs(tmp_path / "ran"), protocol), _nothing, "data.pkl")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", [b"builtins\neval", b"torch\nload", b"torch.fx.graph_module\nreduce_graph_module", b"torch.nn.modules.linear\nLinear"]
)
def test_a_name_that_is_not_on_the_list_is_refused(name: bytes) -> None:
    with pytest.raises(UnsupportedError) as error:
        unpickle(b"\x80\x02c" + name + b"\n(tR.", _nothing, "data.pkl")
    assert error.value.where == name.decode().replace("\n", ".") and "torch.export.save" in error.value.remedy


def _tensor(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, count: int = 6) -> bytes:
    """The pickle of a tensor in a storage of `count` int16."""

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"I%d\n" % value for value in values) + b"t"

    storage = b"(X\x07\x00\x00\x00storagectorch\nShortStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuI%d\ntQ" % count
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"I%d\n" % offset + numbers(sizes) + numbers(strides) + b"I00\n}tR."


def _stored(content: bytes) -> StoredTensor:
    found = unpickle(content, lambda key: np.arange(6, dtype=np.int16).view(np.uint8), "x")
    assert isinstance(found, StoredTensor)
    return found


def test_a_tensor_is_a_view_in_its_strides() -> None:
    assert _stored(_tensor((2, 3), (3, 1))).data.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert _stored(_tensor((3, 2), (1, 3))).data.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert _stored(_tensor((2,), (0,), 4)).data.tolist() == [4, 4]
    assert _stored(_tensor((0, 9), (9, 1))).data.shape == (0, 9)


@pytest.mark.parametrize(
    ("dtype", "name", "values"),
    [("uint16", "uint16", [[2, 3], [4, 5]]), ("float8_e4m3fn", "float8e4m3fn", [[2**-8, 0], [0.005859375, 0]])],
)
def test_a_type_without_a_storage_class_stands_next_to_the_tensor(dtype: str, name: str, values: list[list[float]]) -> None:
    content = _tensor((2, 2), (2, 1), 2 if dtype == "uint16" else 4, 12).replace(b"_v2", b"_v3")
    content = content.replace(b"torch\nShortStorage", b"torch.storage\nUntypedStorage").replace(
        b"}tR.", b"}ctorch\n%stR." % f"{dtype}\n".encode()
    )
    found = _stored(content)
    assert found.dtype == name and found.data.astype(np.float64).tolist() == values
    with refused(InvalidModelError, "damaged-pickle"):
        _stored(content.replace(b"I12\n", b"I3\n"))


@pytest.mark.parametrize(
    ("sizes", "strides", "offset"),
    [((7,), (1,), 0), ((2, 3), (4, 1), 0), ((2,), (1,), 5), ((2**61,), (2**61,), 0), ((2**40,), (0,), 0),
     ((-1,), (1,), 0), ((2,), (-1,), 1), ((2, 2), (1,), 0), ((1,) * 40, (1,) * 40, 0)],
)  # fmt: skip
def test_a_tensor_beyond_its_storage_is_refused(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
    with refused(InvalidModelError, "damaged-pickle"):
        _stored(_tensor(sizes, strides, offset))


def test_a_storage_shorter_than_it_says_is_refused() -> None:
    with refused(InvalidModelError, "damaged-pickle", holds=(12, 100)):
        _stored(_tensor((8,), (1,), count=100))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x02", b"\x80\x02.", b"\x80\x02tR.", b"\x80\x02(.", b"\x80\x02h\x05.", b"\x80\x02X\xff\xff\xff\x7fab.", b"}K\x01b."],
)
def test_a_damaged_pickle_is_refused(content: bytes) -> None:
    with refused(InvalidModelError, "damaged-pickle"):
        unpickle(content, _nothing, "x")


def test_an_object_of_torchscript_is_data() -> None:
    content = b"\x80\x02c__torch__.net\nNet\n)\x81}(X\x08\x00\x00\x00trainingI00\nub."
    found = unpickle(content, _nothing, "x")
    assert isinstance(found, ScriptObject) and found.class_name == "__torch__.net.Net" and found.state == {"training": False}


@pytest.mark.parametrize("name", ["Conv2dPackedParamsBase", "LinearPackedParamsBase", "EmbeddingPackedParamsBase"])
@pytest.mark.parametrize("state", [{}, {"version": 3}, (), (3, [float("inf")], ()), ([],), 7, None, "state"])
def test_packed_parameters_whose_state_has_another_form(name: str, state: Any) -> None:
    with pytest.raises(InvalidModelError):
        unpack_parameters(ScriptObject(f"__torch__.torch.classes.quantized.{name}", (), state), "first")
