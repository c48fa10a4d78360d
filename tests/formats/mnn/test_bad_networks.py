""".mnn files that contradict themselves or hold what no known version of MNN writes, and weights in all numbers of codes and bits."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.encodings import Place
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.mnn.network import NET, is_network, read_network
from qconvert.formats.mnn.reader import network_encodings
from qconvert.graph import Array

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[3] / "fixtures" / "mnn"


def network(name: str = "KL") -> Any:
    """The tables of a file as objects that can be changed."""
    return unpack_view(NET.root((FIXTURES / f"{name}.mnn").read_bytes()))


def layer(net: Any, index: int = 0) -> Any:
    """The parameters of a layer."""
    return [op.main for op in net.oplists if op.main is not None][index]


def written(net: Any, tmp_path: Path) -> Path:
    path = tmp_path / "net.mnn"
    path.write_bytes(pack_model(net))
    return path


def change(where: Callable[[Any], Any], **values: Any) -> Callable[[Any], None]:
    def apply(net: Any) -> None:
        for name, value in values.items():
            setattr(where(net), name, value)

    return apply


def _first_layer(net: Any) -> int:
    return next(index for index, op in enumerate(net.oplists) if op.main is not None and op.main is layer(net))


def quantized(net: Any) -> Any:
    return layer(net).quanParameter


def info(net: Any) -> Any:
    return next(item for item in net.extraTensorDescribe if item.quantInfo is not None).quantInfo


def described(net: Any) -> Any:
    return next(item for item in net.extraTensorDescribe if item.quantInfo is not None)


def cut(net: Any) -> None:
    quantized(net).buffer = quantized(net).buffer[:-1]


def with_byte(place: int, value: int) -> Callable[[Any], None]:
    def apply(net: Any) -> None:
        buffer = quantized(net).buffer.copy()
        buffer[place] = value
        quantized(net).buffer = buffer

    return apply


def twice(net: Any) -> None:
    net.extraTensorDescribe.append(described(net))


def with_subgraph(net: Any, operator: int = 0, scale: float = 0.0) -> None:
    """The body of a loop: one of the operators of the network, and a tensor with a scale."""
    inner = NET.object("SubGraphProto")()
    inner.name, inner.nodes = "body", [net.oplists[operator]]
    inner.extraTensorDescribe = [copy.deepcopy(described(net))]
    inner.extraTensorDescribe[0].quantInfo.scale = scale
    net.subgraphs = [inner]


WRONG: dict[str, tuple[Callable[[Any], None], type[QConvertError], str]] = {
    "no operators": (lambda net: setattr(net, "oplists", None), InvalidModelError, ("no-operators",)),
    "scale in a subgraph": (partial(with_subgraph, scale=0.5), UnsupportedError, ("subgraphs-not-covered", "body")),
    "layer in a subgraph": (lambda net: with_subgraph(net, _first_layer(net)), UnsupportedError, ("subgraphs-not-covered", "body")),
    "old sums": (change(lambda net: net.oplists[5], type=518), UnsupportedError, ("version-not-covered", "EltwiseInt8")),
    "old pooling": (change(lambda net: net.oplists[6], type=516), UnsupportedError, ("version-not-covered", "PoolInt8")),
    "tensor beyond": (change(lambda net: net.oplists[3], outputIndexes=np.array([99], np.int32)), InvalidModelError, ("damaged-file", 25)),
    "negative tensor": (change(lambda net: net.oplists[3], inputIndexes=np.array([-1], np.int32)), InvalidModelError, ("damaged-file", 25)),
    "name": (change(lambda net: net.oplists[3], name=b"\xff"), InvalidModelError, ("not-utf8",)),
    "scale beyond": (change(described, index=1000), InvalidModelError, ("damaged-file", 1000)),
    "two scales": (twice, InvalidModelError, ("damaged-file",)),
    "negative scale": (change(info, scale=-1.0), InvalidModelError, ("scale-not-positive", "-1.0")),
    "NaN scale": (change(info, scale=float("nan")), InvalidModelError, ("scale-not-positive", "nan")),
    "infinite scale": (change(info, scale=float("inf")), InvalidModelError, ("scale-not-positive", "inf")),
    "zero point beyond": (change(info, zero=200.0), InvalidModelError, ("zero-point-outside-type", "200.0")),
    "half a zero point": (change(info, zero=0.5), InvalidModelError, ("zero-point-outside-type", "0.5")),
    "NaN zero point": (change(info, zero=float("nan")), InvalidModelError, ("zero-point-outside-type", "nan")),
    "limits": (change(info, min=5.0, max=-5.0), InvalidModelError, ("limits-outside-type", "5.0", "-5.0")),
    "NaN limit": (change(info, max=float("nan")), InvalidModelError, ("limits-outside-type",)),
    "another type": (change(info, type=3), UnsupportedError, ("dtype-not-covered", "DataType", 3)),
    "no bytes": (change(quantized, buffer=None), InvalidModelError, ("damaged-weights",)),
    "empty bytes": (change(quantized, buffer=np.zeros(0, np.int8)), InvalidModelError, ("damaged-weights", 0)),
    "cut bytes": (cut, InvalidModelError, ("damaged-weights", 8, 27)),
    "dimensions": (with_byte(0, 4), InvalidModelError, ("damaged-weights", 4)),
    "rows": (with_byte(1, 9), InvalidModelError, ("damaged-weights",)),
    "fewer rows": (with_byte(1, 7), InvalidModelError, ("counts-differ", 8)),
    "no rows": (with_byte(1, 0), InvalidModelError, ("counts-differ", 8)),
    "columns": (with_byte(3, 26), InvalidModelError, ("counts-differ", 8)),
    "other outputs": (change(lambda net: layer(net).common, outputCount=5), InvalidModelError, ("counts-differ", 5)),
    "negative outputs": (change(lambda net: layer(net).common, outputCount=-1), InvalidModelError, ("counts-differ", -1)),
    "kernel": (change(lambda net: layer(net).common, kernelX=0), InvalidModelError, ("counts-differ",)),
    "huge kernel": (change(lambda net: layer(net).common, kernelX=2**31 - 1), InvalidModelError, ("counts-differ",)),
    "no scales": (change(quantized, alpha=None), InvalidModelError, ("counts-differ", 0, 8)),
    "fewer scales": (change(quantized, alpha=np.ones(5, np.float32)), InvalidModelError, ("counts-differ", 5)),
    "blocks that do not divide": (
        change(quantized, alpha=np.ones(16, np.float32)),
        InvalidModelError,
        ("counts-differ", 16, 8),
    ),
    "negative weight scale": (change(quantized, alpha=np.full(8, -1, np.float32)), InvalidModelError, ("scale-not-positive",)),
    "NaN weight scale": (change(quantized, alpha=np.full(8, np.nan, np.float32)), InvalidModelError, ("scale-not-positive",)),
    "infinite factor": (change(quantized, quantScale=float("inf")), InvalidModelError, ("scale-not-positive",)),
    "small halves": (
        change(quantized, alpha=None, alphaFp16=np.ones(8, np.uint16), scaleStorage=2),
        UnsupportedError,
        ("form-not-covered", 2),
    ),
    "sparse codes": (change(quantized, type=2), UnsupportedError, ("form-not-covered", "IDSTQuan.type", 2)),
    "unknown codes": (change(quantized, type=9), UnsupportedError, ("form-not-covered", "IDSTQuan.type", 9)),
    "outside": (change(quantized, buffer=None), InvalidModelError, ("damaged-weights",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_networks_that_are_none(case: str, tmp_path: Path) -> None:
    alter, error, broken = WRONG[case]
    net = network()
    alter(net)
    path = written(net, tmp_path)
    with refused(error, broken[0], holds=broken[1:]) as caught:
        network_encodings(path)
    assert caught.value.file == str(path)


def test_scale_0_is_none(tmp_path: Path) -> None:
    """Whatever the zero point next to it is. The first layer then has the scale of its data for itself."""
    net = network()
    assert described(net).index == 0 and net.tensorName[0] == b"x"
    info(net).scale, info(net).zero = 0.0, 300.0
    found = network_encodings(written(net, tmp_path))
    assert Place("x") not in found.entries
    assert found[Place("a1", "input")].qparams == network_encodings(FIXTURES / "KL.mnn")["x"].qparams


def test_float_subgraphs_have_no_scales(tmp_path: Path) -> None:
    """MNN's converter makes them of loops, such as GRUs in both directions."""
    net = network()
    with_subgraph(net)
    assert network_encodings(written(net, tmp_path)) == network_encodings(FIXTURES / "KL.mnn")


def test_a_network_packed_again_is_the_same(tmp_path: Path) -> None:
    path = written(network(), tmp_path)
    assert network_encodings(path) == network_encodings(FIXTURES / "KL.mnn") and is_network(path.read_bytes())


def coded(weights: Array, codes: Array, width: int = 2) -> Array:
    """A buffer of type 1 as MNN's IDSTEncoder.hpp writes it, one number at a time."""
    bits = max(1, int(np.ceil(np.log2(len(codes)))))
    places = np.searchsorted(codes, weights.reshape(-1))
    text = "".join(f"{place:0{bits}b}" for place in places)
    text += "0" * (-len(text) % 8)
    data = bytes(int(text[start : start + 8], 2) for start in range(0, len(text), 8))
    sizes = b"".join(int(size).to_bytes(width, "little") for size in weights.shape)
    return np.frombuffer(bytes([2]) + sizes + bytes([len(codes) % 256]) + codes.astype(np.int8).tobytes() + data, np.int8)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 64, 65, 100, 128, 129, 200, 255, 256])
@pytest.mark.parametrize("width", [2, 4])
def test_all_numbers_of_codes(count: int, width: int, tmp_path: Path) -> None:
    """Older versions of MNN store only the codes that occur; dimensions take two bytes, or four in large layers."""
    rng = np.random.default_rng(count)
    codes = np.sort(rng.choice(np.arange(-128, 128), count, replace=False))
    weights = codes[rng.integers(count, size=(8, 27))].astype(np.int8)
    net = network()
    quantized(net).buffer, quantized(net).shapeInt32 = coded(weights, codes, width), width == 4
    found = read_network(written(net, tmp_path)).layers[0].weights
    assert found is not None and np.array_equal(found.integers, weights.reshape(8, 3, 3, 3))
    assert found.bits == max(1, int(np.ceil(np.log2(count)))) and found.is_full == (count == 256)


@pytest.mark.parametrize("bits", range(1, 9))
def test_all_numbers_of_bits(bits: int, tmp_path: Path) -> None:
    """Newer ones store all integers of so many bits."""
    codes = np.arange(-(1 << bits - 1), 1 << bits - 1)
    weights = codes[np.random.default_rng(bits).integers(len(codes), size=(8, 27))].astype(np.int8)
    net = network()
    quantized(net).buffer = coded(weights, codes)
    path = written(net, tmp_path)
    found = read_network(path).layers[0].weights
    assert found is not None and found.is_full and found.bits == bits and np.array_equal(found.integers.reshape(8, 27), weights)
    entry = network_encodings(path)[Place("a1", "input", 1)]
    assert entry.qparams is not None and entry.integers is not None
    assert entry.qparams.dtype == ("int4" if bits <= 4 else "int8")
    assert entry.qparams.quantization.limits(entry.qparams.dtype) == (codes[0], codes[-1])
    assert np.array_equal(entry.integers.astype(np.int8).reshape(8, 27), weights)


def test_a_code_that_is_none(tmp_path: Path) -> None:
    codes = np.array([-3, 0, 2])
    buffer = coded(np.zeros((8, 27), np.int8), codes).copy()
    buffer[-1] = -1  # the last four weights are code 3
    net = network()
    quantized(net).buffer = buffer
    with refused(InvalidModelError, "damaged-weights", holds=(3,)):
        read_network(written(net, tmp_path))


def test_weights_as_plain_bytes(tmp_path: Path) -> None:
    """IDSTQuan.type 4 of older versions: int8, outputs first; without a factor (quantScale 0) with offsets."""
    weights = np.random.default_rng(4).integers(-128, 128, (8, 27)).astype(np.int8)
    net = network()
    quantized(net).type, quantized(net).buffer = 4, weights.reshape(-1)
    found = read_network(written(net, tmp_path)).layers[0].weights
    assert found is not None and found.offsets is None and np.array_equal(found.integers.reshape(8, 27), weights)
    pairs = np.stack([np.arange(8), np.full(8, 0.5)], 1).astype(np.float32)
    quantized(net).alpha, quantized(net).quantScale = pairs.reshape(-1), 0.0
    found = read_network(written(net, tmp_path)).layers[0].weights
    assert found is not None and found.offsets is not None
    assert found.scales.tolist() == [0.5] * 8 and found.offsets.tolist() == [start + 64 for start in range(8)]


def test_a_factor_of_all_scales_counts(tmp_path: Path) -> None:
    net = network()
    quantized(net).quantScale = 0.5
    before, after = (read_network(path).layers[0].weights for path in (FIXTURES / "KL.mnn", written(net, tmp_path)))
    assert before is not None and after is not None and np.array_equal(after.scales, before.scales * np.float32(0.5))


@pytest.mark.parametrize("name", ["KL", "weights_4_blocks"])
def test_truncation(name: str, tmp_path: Path) -> None:
    data = (FIXTURES / f"{name}.mnn").read_bytes()
    choose = random.Random(name)
    path = tmp_path / "net.mnn"
    for length in sorted({*range(1, 60, 5), *(choose.randrange(len(data) - 24) for _ in range(80))}):
        path.write_bytes(data[:length])
        with pytest.raises(InvalidModelError):
            network_encodings(path)
        assert is_network(data[:length]) is False
