"""Code and pickles that would take endless time or memory: each ends in one error, and nothing is allocated on the way."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from refusals import refused

import qconvert
from qconvert.formats.torch.values import EndlessError, leaves

pytestmark = pytest.mark.formats

HEAD = "class Model(Module):\n  def forward(self: __torch__.Model,\n    x: Tensor) -> Tensor:\n"
MODEL = b"\x80\x02c__torch__\nModel\nq\x00)\x81}(X\x08\x00\x00\x00trainingq\x01\x89ub."
DOUBLED = "\n".join(["y = [y, y]"] * 60)


def _archive(path: Path, lines: str, data: bytes = MODEL, compression: int = zipfile.ZIP_STORED, **others: bytes) -> Path:
    code = HEAD + "".join(f"    {line}\n" for line in lines.split("\n"))
    entries = {"data.pkl": data, "code/__torch__.py": code.encode(), "constants.pkl": b"\x80\x02).", "version": b"3\n", **others}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(f"m/{name}", content)
    return path


def _refused(path: Path, rule: str, *holds: str) -> None:
    tracemalloc.start()
    try:
        with refused(qconvert.QConvertError, rule, holds=holds):
            qconvert.load(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 80 * 2**20 + 8 * path.stat().st_size


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        *[(f"y = {call}\nreturn x", "too-many-steps") for call in (
            "torch.list(range(1000000000000))", "max(range(1000000000000))", "torch.sum(range(1000000000000))",
            "torch.sorted(range(1000000000000))", "torch.__contains__(range(1000000000000), 0.5)", "torch.all(range(1, 1000000000000))",
            "ops.prim.enumerate(range(1000000000000))", "ops.prim.zip(range(1000000000000), range(1000000000000))",
        )],
        ("y = ops.prim.rangelist(1000000000000)\nreturn x", "too-many-items"),
        ("while True:\n  x = torch.neg(x)\nreturn x", "too-many-steps"),
        ("y = [1]\nfor i in y:\n  z = torch.append(y, 1)\nreturn x", "too-many-steps"),
        ("y = torch.reshape(x, [10000, 2])\nfor i in range(100000):\n  z = torch.unbind(y, 0)\nreturn z", "too-many-steps"),
        ("y = torch.mul([torch.reshape(x, [2])], 65536)\nreturn torch.cat(y, 0)", "too-many-steps"),
        ("y = [1]\nz = torch.append(y, y)\nreturn torch.add(x, y)", "nested-too-deeply"),
        ("y = [x]\nz = torch.append(y, y)\nreturn y", "nested-too-deeply"),
        ("y = [x]\nz = torch.append(y, y)\nops.prim.RaiseException(torch.str(y))\nreturn x", "nested-too-deeply"),
        (f"y = [1]\n{DOUBLED}\nreturn torch.add(x, y)", "nested-too-deeply"),
        (f"y = [x]\n{DOUBLED}\nreturn y", "nested-too-deeply"),
        (f"y = [1]\n{DOUBLED}\nz = y\ny = [1]\n{DOUBLED}\nw = torch.__contains__([y], z)\nreturn x", "nested-too-deeply"),
        ("y = 'ab'\n" + "y = torch.add(y, y)\n" * 60 + "return x", "too-many-items"),
        ("for i in range(100000):\n  y = torch.zeros([65536])\nreturn x", "constants-too-large"),
        ("for i in range(100000):\n  y = torch.eye(2048)\nreturn x", "constants-too-large"),
        ("y = torch.reshape(x, [1000000000000])\nreturn torch.chunk(y, 1000000000000)", "too-many-elements"),
        ("y = torch.reshape(x, [1, 3, 30, 30])\nreturn torch.adaptive_avg_pool2d(y, [1000000000, 1000000000])", "too-many-elements"),
        ("y = torch.reshape(x, [1, 10000000000, 30, 30])\nreturn torch.pixel_unshuffle(y, 3)", "shape-not-covered"),
        ("y = torch.reshape(x, [1, 10000000000, 30, 30])\nreturn torch.channel_shuffle(y, 2)", "sizes-do-not-divide"),
        ("y = torch.reshape(x, [1, 1, 10, 10])\nreturn torch.upsample_nearest2d(y, [1000000000, 1000000000], None)", "too-many-elements"),
        ("y = torch.full([1099511627776, 1099511627776], 1.)\nreturn torch.add(y, x)", "too-many-elements"),
        ("y = 1\n" * 150_000 + "return x", "code-too-large"),
        ("y = x" + ".a" * 100_000 + "\nreturn x", "malformed-code"),
        ("y = " + "not " * 100_000 + "1\nreturn x", "malformed-code"),
        ("if False:\n  pass\n" + "elif False:\n  pass\n" * 20_000 + "return x", "malformed-code"),
    ],
)  # fmt: skip
def test_code_that_does_not_end_or_grows_is_refused(tmp_path: Path, lines: str, rule: str) -> None:
    _refused(_archive(tmp_path / "m.pt", lines), rule)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"\x80\x02(" + b"N" * 1_100_000 + b"t.", "too-many-opcodes"),
        (MODEL[:-2] + b"X\x01\x00\x00\x00a]q\x05h\x05asb.", "nested-too-deeply"),
        (MODEL[:-2] + b"X\x01\x00\x00\x00a)" + b"q\x05h\x05\x86" * 80 + b"sb.", "too-many-items"),
        (MODEL[:-2] + b"X\x01\x00\x00\x00a" + b"]" * 5000 + b"a" * 4999 + b"sb.", "nested-too-deeply"),
    ],
)
def test_pickles_that_are_endless_once_written_out_are_refused(tmp_path: Path, data: bytes, rule: str) -> None:
    _refused(_archive(tmp_path / "m.pt", "return x", data.replace(b"\x89ub.", b"\x89u.", 1)), rule)


def test_many_tensors_that_repeat_one_small_storage_are_refused(tmp_path: Path) -> None:
    """A tensor of 4 MB for each 40 bytes of the file: strides of 0."""
    storage = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + b"K\x00J\x00\x00\x10\x00\x85K\x00\x85\x89Ntq\x07R"
    data = b"\x80\x02](" + tensor * 20 + b"e."
    _refused(_archive(tmp_path / "m.pt", "return x", data, **{"data/0": bytes(4)}), "damaged-pickle")


def test_compressed_code_counts_once_it_is_expanded(tmp_path: Path) -> None:
    text = "".join(f"# {index}{'-' * 200}\n    " for index in range(40_000))
    _refused(_archive(tmp_path / "m.pt", text + "\nreturn x", compression=zipfile.ZIP_DEFLATED), "expands-too-much")


def test_a_value_is_followed_as_deep_and_as_far_as_models_are() -> None:
    spent: list[int] = []
    assert len(list(leaves([[1, 2], {"a": (3, 4)}, 5] * 100, spent.append))) == 500
    assert sum(spent) == (1 + 100 * 8) // 8
    itself: list[object] = []
    itself.append(itself)
    with pytest.raises(EndlessError):
        list(leaves(itself))


def test_a_network_within_the_limits_is_read(tmp_path: Path) -> None:
    """A trace of 2,000 operators, and a loop of 1,000."""
    path = _archive(tmp_path / "m.pt", "x = torch.neg(x)\n" * 2000 + "for i in range(1000):\n  x = torch.neg(x)\nreturn x")
    assert len(qconvert.load(path).ops) == 3000


def test_an_archive_in_an_archive_is_named(tmp_path: Path) -> None:
    inner = _archive(tmp_path / "inner.pt", "return x").read_bytes()
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("models/inner.pt", inner)
    (tmp_path / "outer.pt").write_bytes(outer.getvalue())
    _refused(tmp_path / "outer.pt", "graph-missing", "inner.pt")
