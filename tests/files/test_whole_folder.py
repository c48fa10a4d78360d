"""Results that are folders: whole or not at all, and nothing of others is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from qconvert.errors import FileAccessError, OptionError
from qconvert.files import whole_folder

NAMES = ("a", "b", "c")


def fill(folder: Path, **content: str) -> None:
    for name, text in content.items():
        (folder / name).write_text(text)


def content(folder: Path) -> dict[str, str]:
    return {item.name: item.read_text() for item in folder.iterdir()}


def test_a_new_folder(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out", NAMES) as folder:
        fill(folder, a="1", b="2")
        assert not (tmp_path / "out").exists()
    assert content(tmp_path / "out") == {"a": "1", "b": "2"} and [item.name for item in tmp_path.iterdir()] == ["out"]


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught, whole_folder(tmp_path / "out", NAMES) as folder:
        fill(folder, a="1")
        raise OptionError("no", file=str(folder / "a"))
    assert caught.value.file == str(tmp_path / "out" / "a") and not list(tmp_path.iterdir())


def test_other_files_of_a_folder_stay(tmp_path: Path) -> None:
    fill(tmp_path, mine="m")
    with whole_folder(tmp_path, NAMES) as folder:
        fill(folder, a="1")
    assert content(tmp_path) == {"mine": "m", "a": "1"}


def test_a_result_that_is_there_needs_force(tmp_path: Path) -> None:
    fill(tmp_path, a="old", c="old", mine="m")
    with refused(FileAccessError, "file-exists"), whole_folder(tmp_path, NAMES):
        pass
    said: list[str] = []
    with whole_folder(tmp_path, NAMES, force=True, tell=said.append) as folder:
        fill(folder, a="new", b="new")
    assert content(tmp_path) == {"a": "new", "b": "new", "mine": "m"}
    assert said == ["removed c, which belonged to the result that was replaced"]


def test_a_failure_keeps_the_old_result(tmp_path: Path) -> None:
    fill(tmp_path, a="old", c="old")
    with pytest.raises(OptionError), whole_folder(tmp_path, NAMES, force=True) as folder:
        fill(folder, a="new")
        raise OptionError("no")
    assert content(tmp_path) == {"a": "old", "c": "old"}


def test_the_source_is_not_replaced(tmp_path: Path) -> None:
    fill(tmp_path, a="source")
    with refused(OptionError, "source-overwritten"), whole_folder(tmp_path, NAMES, force=True, reads=[tmp_path / "a"]):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    fill(tmp_path, out="file")
    with refused(FileAccessError, "not-a-folder"), whole_folder(tmp_path / "out", NAMES, force=True):
        pass
    with refused(FileAccessError, "not-writable"), whole_folder(tmp_path / "none" / "out", NAMES):
        pass


def test_the_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    with whole_folder(Path("."), NAMES) as folder:
        fill(folder, a="1")
    assert content(inner) == {"a": "1"}
