"""The archive core: limits on entries, sizes and names, and storages as views."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.archive import Archive

pytestmark = pytest.mark.formats


def _archive(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_a_stored_entry_is_a_view_of_the_file(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.int16)
    archive = Archive(_archive(tmp_path / "a.pt", {"model/data/0": values.tobytes(), "model/version": b"3\n"}))
    found = archive.storage("data/0")
    assert np.array_equal(found.view(np.int16), values) and not found.flags.owndata
    assert archive.root == "model/" and archive.text("version") == "3\n" and sorted(archive) == ["data/0", "version"]


def test_a_deflated_entry_is_read_too(tmp_path: Path) -> None:
    archive = Archive(_archive(tmp_path / "a.pt", {"m/code/a.py": b"class A:\n" * 50, "m/x": b""}, zipfile.ZIP_DEFLATED))
    assert archive.text("code/a.py") == "class A:\n" * 50 and archive.read("x") == b""


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "m/../../x", "m\\x", "m//x", "./x"])
def test_a_name_that_leaves_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    path = _archive(tmp_path / "a.pt", {name: b"x"})
    with refused(InvalidModelError, "entry-outside-archive"):
        Archive(path)


def test_a_bomb_is_refused_before_it_expands(tmp_path: Path) -> None:
    path = _archive(tmp_path / "a.pt", {"m/data.pkl": bytes(2**26)}, zipfile.ZIP_DEFLATED)
    with refused(InvalidModelError, "expands-too-much", holds=(200,)):
        Archive(path)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    path = _archive(tmp_path / "a.pt", {"m/data.pkl": b"0123456789"})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0123456789", b"0123456780"))
    with refused(InvalidModelError, "damaged-entry"):
        Archive(path).read("data.pkl")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_archive_is_refused(tmp_path: Path, kept: float) -> None:
    path = _archive(tmp_path / "a.pt", {f"m/data/{index}": bytes(100) for index in range(20)})
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with refused(InvalidModelError, "not-a-zip"):
        Archive(path)


def test_entries_upon_each_other_are_refused(tmp_path: Path) -> None:
    path = _archive(tmp_path / "a.pt", {"m/a": b"aaaa", "m/b": b"bbbb"})
    content = bytearray(path.read_bytes())
    second = content.find(b"PK\x01\x02", content.find(b"PK\x01\x02") + 1)
    content[second + 42 : second + 46] = bytes(4)  # the second entry begins where the first does
    path.write_bytes(content)
    with refused(InvalidModelError, "entries-overlap"):
        Archive(path)


def test_an_entry_without_a_name_is_refused(tmp_path: Path) -> None:
    path = _archive(tmp_path / "a.pt", {"m/a": b"aaaa", "b": b"bbbb"})
    content = bytearray(path.read_bytes())
    entry = content.rfind(b"PK\x01\x02")
    content[entry + 28] = 0  # the length of its name; the name becomes the beginning of the comment
    content[entry + 32] = 1
    path.write_bytes(content)
    with refused(InvalidModelError, "entry-outside-archive"):
        Archive(path)


def test_an_entry_of_another_name_where_it_lies_is_refused(tmp_path: Path) -> None:
    path = _archive(tmp_path / "a.pt", {"m/data.pkl": b"x" * 40})
    content = bytearray(path.read_bytes())
    content[30 : 30 + len("m/data.pkl")] = b"m/tada.pkl"
    path.write_bytes(content)
    with refused(InvalidModelError, "damaged-entry"):
        Archive(path).read("data.pkl")
