"""Outputs appear whole or not at all: killed at any point, in any folder, under any name; and no file that is read is replaced."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from refusals import refused

from qconvert import Graph, Op, QConvertError, Tensor, load, save
from qconvert.errors import FileAccessError, OptionError
from qconvert.files import whole_file
from qconvert.formats.onnx.container import external_files

pytestmark = pytest.mark.formats

MODEL = Path(__file__).parent.parent.parent / "fixtures" / "tiny_kws_dscnn_int8.tflite"
TARGETS = {"onnx": "generic", "qgraph": "", "tflite": "tflite"}

#: What changes names of files: a process can die before and after each call.
CALLS = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def graph(value: float) -> Graph:
    tensors = {
        "x": Tensor("x", "float32", (1, 64)),
        "w": Tensor("w", "float32", (64, 64), np.full((64, 64), value, np.float32)),
        "y": Tensor("y", "float32", (1, 64)),
    }
    return Graph("g", tensors, (Op("MatMul", ("x", "w"), ("y",)),), ("x",), ("y",))


def weight(path: Path) -> float:
    """The constant of a model as anyone reads it, and the model's own word on which it is."""
    model = onnx.load(path)
    (found,) = {float(value) for value in np.unique(numpy_helper.to_array(model.graph.initializer[0]))}
    assert {entry.key: entry.value for entry in model.metadata_props}["value"] == f"{found:g}"
    return found


def write(path: Path, value: float, external: bool) -> None:
    save(graph(value), path, force=True, external_data=external, provenance={"value": f"{value:g}"})


def killed_before(number: int, run: Callable[[], None]) -> bool:
    """Runs in a process of its own that dies before its call number `number`; whether it lived so long."""
    child = os.fork()
    if child == 0:
        left = number

        def dying(call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*arguments, **more)

        for name in CALLS:
            setattr(os, name, partial(dying, getattr(os, name)))
        try:
            run()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.end_to_end
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_killed_at_any_point_a_model_has_its_own_constants(before: bool, after: bool, tmp_path: Path) -> None:
    model, seen, number = tmp_path / "model.onnx", [], 0
    while True:
        write(model, 1, before)
        died = killed_before(number, lambda: write(model, 2, after))
        seen.append(weight(model))
        if not died:
            break
        number += 1
        write(model, 3, after)
        assert weight(model) == 3
        assert names(tmp_path) == ["model.onnx", *sorted(item.name for item in external_files(model))]
    assert set(seen) == {1.0, 2.0} and number >= 4
    assert seen == sorted(seen)


@pytest.mark.end_to_end
def test_a_killed_first_conversion_leaves_nothing_once_the_next_has_run(tmp_path: Path) -> None:
    model, number = tmp_path / "model.onnx", 0
    while killed_before(number, lambda: save(graph(1), model, external_data=True)):
        assert not model.exists() or onnx.load(model).graph.initializer[0].raw_data
        model.unlink(missing_ok=True)
        save(graph(2), model)
        assert names(tmp_path) == ["model.onnx"]
        model.unlink()
        number += 1
    assert number >= 4


@pytest.mark.end_to_end
def test_the_folder_of_a_run_that_lives_stays(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a") as first:
        first.write_bytes(b"a")
        child = os.fork()
        if child == 0:
            try:
                with whole_file(tmp_path / "b") as second:
                    second.write_bytes(b"b")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert first.read_bytes() == b"a"
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.end_to_end
@pytest.mark.cross_section
def test_runs_beside_each_other_leave_a_model_with_its_data(tmp_path: Path) -> None:
    model, children = tmp_path / "model.onnx", []
    for first in range(3):
        child = os.fork()
        if child == 0:
            try:
                for value in range(5):
                    write(model, (first + value) % 3, True)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert weight(model) in (0, 1, 2)
    write(model, 3, False)
    assert names(tmp_path) == ["model.onnx"]


def test_one_of_two_runs_that_must_not_replace_each_other(tmp_path: Path) -> None:
    with refused(FileAccessError, "file-exists"), whole_file(tmp_path / "model") as first:
        with whole_file(tmp_path / "model") as second:
            second.write_bytes(b"second")
        first.write_bytes(b"first")
    assert names(tmp_path) == ["model"] and (tmp_path / "model").read_bytes() == b"second"


def test_old_data_stay_where_they_may_not_be_ours(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    write(model, 1, True)
    (ours,) = external_files(model)
    (tmp_path / "copy.bak").write_bytes(model.read_bytes())
    foreign = tmp_path / "model.onnx.0123456789abcdef.data"
    foreign.write_bytes(b"has another digest")
    (tmp_path / "model.onnx.data").write_bytes(b"of another tool")
    write(model, 2, False)
    assert names(tmp_path) == sorted(["copy.bak", foreign.name, "model.onnx", "model.onnx.data", ours.name])
    (tmp_path / "copy.bak").unlink()
    notes = save(graph(3), model, force=True)
    assert not ours.exists() and foreign.exists() and (tmp_path / "model.onnx.data").exists()
    assert [note.text for note in notes] == [f"removed {ours.name}, which belonged to the file that was replaced"]


def test_both_files_or_none(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), whole_file(tmp_path / "model") as path:
        path.write_bytes(b"model")
        path.with_name("model.more").write_bytes(b"data")
        raise RuntimeError
    assert names(tmp_path) == []

    def both(force: bool) -> None:
        with whole_file(tmp_path / "model", force=force) as path:
            path.write_bytes(b"model")
            path.with_name("model.more").write_bytes(b"data")

    (tmp_path / "model.more").write_bytes(b"mine")
    with refused(FileAccessError, "file-exists", holds=("model.more",)):
        both(False)
    assert names(tmp_path) == ["model.more"] and (tmp_path / "model.more").read_bytes() == b"mine"
    both(True)
    assert (tmp_path / "model.more").read_bytes() == b"data"
    (tmp_path / "model").unlink()
    both(False)  # what lies next to is what would be written
    assert names(tmp_path) == ["model", "model.more"]


def test_a_file_within_a_file_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of the folder in which a result is made is held by the run that makes it."""

    def refuse(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} seconds")

    monkeypatch.setattr("qconvert.files.atomic_writes.time.sleep", refuse)
    with whole_file(tmp_path / "a") as outer, whole_file(outer) as inner:
        inner.write_text("made")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "made"


def test_a_model_that_cannot_be_moved_leaves_the_files_beside_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "model.a").write_bytes(b"before")
    with pytest.raises(FileAccessError), whole_file(tmp_path / "model", force=True) as path:
        path.with_name("model.a").write_bytes(b"after")
        path.with_name("model.b").write_bytes(b"more")
        path.write_bytes(b"model")
        (tmp_path / "model").mkdir()
    assert names(tmp_path) == ["model", "model.a"]
    assert (tmp_path / "model.a").read_bytes() == b"before"


@pytest.mark.parametrize("way", ["name", "hard link", "symbolic link", "folder"])
@pytest.mark.parametrize("written", ["model", "model.scales"])
def test_no_file_that_is_read_is_replaced(way: str, written: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in" / "source", tmp_path / "out"
    source.parent.mkdir()
    source.write_bytes(b"source")
    out.mkdir()
    if way == "name":
        source = source.rename(out / written)
    elif way == "hard link":
        os.link(source, out / written)
    elif way == "symbolic link":
        source = source.rename(out / written)
        (tmp_path / "in" / "link").symlink_to(source)
        source = tmp_path / "in" / "link"
    else:
        source = source.rename(out / written)
        (tmp_path / "again").symlink_to(out)
        source = tmp_path / "again" / written
    before = names(out)
    with refused(OptionError, "source-overwritten"), whole_file(out / "model", force=True, reads=[source]) as path:
        path.write_bytes(b"model")
        path.with_name("model.scales").write_bytes(b"scales")
    assert names(out) == before and source.read_bytes() == b"source"


def test_two_results_of_one_name(tmp_path: Path) -> None:
    with refused(OptionError, "same-file-twice"), whole_file(tmp_path / "model.onnx") as path:
        path.write_bytes(b"model")
        path.with_name("Model.ONNX").write_bytes(b"scales")
    assert names(tmp_path) == []


def test_force_writes_through_links_and_keeps_permissions(tmp_path: Path) -> None:
    real, link = tmp_path / "folder" / "real.onnx", tmp_path / "link.onnx"
    real.parent.mkdir()
    write(real, 1, False)
    real.chmod(0o640)
    link.symlink_to(Path("folder", "real.onnx"))
    with refused(FileAccessError, "file-exists"):
        save(graph(2), link)
    write(link, 2, True)
    assert link.is_symlink() and weight(real) == 2
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert names(tmp_path) == ["folder", "link.onnx"] and len(names(real.parent)) == 2
    (tmp_path / "new.onnx").symlink_to(tmp_path / "folder" / "new.onnx")
    write(tmp_path / "new.onnx", 3, False)
    assert weight(real.parent / "new.onnx") == 3
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    with refused(FileAccessError, "too-many-links"):
        write(tmp_path / "loop.onnx", 3, False)


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "null.onnx").symlink_to("/dev/null")
    for name, words in (("pipe.onnx", "not a regular file"), ("folder.onnx", "is a directory"), ("null.onnx", "not a regular file")):
        with pytest.raises(FileAccessError, match=words) as caught:
            write(tmp_path / name, 1, False)
        assert str(tmp_path / name) in str(caught.value)
    assert names(tmp_path) == ["folder.onnx", "null.onnx", "pipe.onnx"]
    with (tmp_path / "out").open("wb") as stream:
        for place in (f"/proc/self/fd/{stream.fileno()}", f"/dev/fd/{stream.fileno()}"):
            with refused(FileAccessError, "not-a-regular-file"):
                save(graph(1), place, "onnx", force=True)
    assert (tmp_path / "out").read_bytes() == b""


LONG = "ä" * 130 + ".onnx"
BAD_NAMES: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (b"r\xe9sultat.onnx", "is not UTF-8"),
    "too long": (LONG.encode(), "File name too long"),
    "no folder": (b"none/out.onnx", "none does not exist"),
    "a file for a folder": (b"file/out.onnx", "Not a directory|not a folder"),
}


@pytest.mark.parametrize("case", BAD_NAMES)
def test_names_that_cannot_be_written(case: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    name, words = BAD_NAMES[case]
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    with pytest.raises(FileAccessError, match=words) as caught:
        save(graph(1), path)
    str(caught.value).encode()
    with pytest.raises(QConvertError) as caught_reading:
        load(path)
    str(caught_reading.value).encode()
    assert names(tmp_path) == ["file"]


def test_the_longest_names_that_a_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 125 + ".onnx")
    write(path, 1, True)
    write(path, 2, True)
    assert weight(path) == 2 and len(names(tmp_path)) == 2
    write(path, 3, False)
    assert names(tmp_path) == [path.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(FileAccessError, match="Permission denied"):
        save(graph(1), tmp_path / "out.onnx")
    tmp_path.chmod(0o755)
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_a_full_disk_is_one_error_and_leaves_what_was(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.onnx"
    write(model, 1, True)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}

    def full(*arguments: Any, **more: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with refused(FileAccessError, "not-writable", holds=("model.onnx", "No space left")):
            write(model, 2, True)
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


@pytest.mark.end_to_end
@pytest.mark.parametrize("suffix", ["onnx", "qgraph", "tflite"])
def test_a_disk_that_fills_up(suffix: str, tmp_path: Path) -> None:
    # Python 3.11 would cut off the bytecode of modules too (-B), and read it in every process after this one.
    command = [sys.executable, "-B", "-m", "qconvert", "convert", str(MODEL), str(tmp_path / f"out.{suffix}"), "--target", TARGETS[suffix]]
    limited = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limited, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path / f'out.{suffix}'}: cannot be written") and "part" not in done.stderr
    assert names(tmp_path) == []
