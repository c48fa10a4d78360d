"""Outputs that appear whole or not at all, and replace no file that is read. A result is made in a folder next to it, so that it can be
moved into place at once; a run holds a lock on its folder, and one without a lock was left by a run that was killed: the next run next
to it removes it. The folder of a result that takes long may stay instead, for a run that makes the same again.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qconvert.errors import FileAccessError, OptionError, QConvertError
from qconvert.files.mapped import remove_obsolete
from qconvert.files.names import access_errors, refuse_read_files, require_replaceable, require_writable, require_writable_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


_PREFIX, _SUFFIX, _KEPT = ".qconvert-", ".part", ".kept"
#: Seconds for which a run waits until others have moved their files into place, and between two looks.
_PATIENCE, _PAUSE = 60.0, 0.01


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, removed at the end of the block. Raises OSError where none can be made."""
    for item in _folders(parent):
        _remove_if_left(item)
    folder, lock = _make_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def resumable_folder(path: Path, place: Path, made_of: str) -> Iterator[Path]:
    """A folder as that of scratch_folder(), next to `place`; interrupted by the user, by the system or by a full disk, it stays.

    The next run for the same place finds in it what was written, where it names the same `made_of`; else the folder is emptied. Where
    another run is at work on the same place, or the system has no locks or does not say when it was started, it is a scratch_folder(): what
    was written before a restart may not have reached the disk.

    Args:
        path: the result, as the user names it.
        place: where it goes. Files of it are written to a folder of its name in this one.
        made_of: what the result is made of, and how.

    Raises:
        FileAccessError: the block raised OSError, and something is kept.
    """
    start, folder = _system_start(), place.parent / f"{_PREFIX}{place.name}{_KEPT}"
    lock = _lock_own_folder(folder) if start else None
    if lock is None:
        with scratch_folder(place.parent) as other:
            yield other
        return
    kept, note, is_kept = folder / place.name, folder / f"{place.name}.made_of", False
    stated = f"{start}\n{made_of}".encode()
    try:
        if not note.is_file() or note.read_bytes() != stated:
            shutil.rmtree(kept, ignore_errors=True)
            note.write_bytes(stated)
        yield folder
    except (KeyboardInterrupt, MemoryError):
        is_kept = _has_files(kept)
        raise
    except OSError as error:
        if not (is_kept := _has_files(kept)):
            raise
        raise FileAccessError(
            f"cannot be written: {error.strerror or error}",
            file=str(path),
            remedy=f"The same command goes on from here. What is finished is kept in {folder}.",
            rule="not-writable",
        ) from error
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _has_files(folder: Path) -> bool:
    with suppress(OSError):
        return any(folder.iterdir())
    return False


def _lock_own_folder(folder: Path) -> int | None:
    """The lock of a folder of this user, which is made where it is not there; None where that cannot be."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            return _lock_folder(folder)
    return None


def _system_start() -> str:
    """Which start of the system this is, by Linux; "" elsewhere."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@contextmanager
def hold_folder_lock(folder: Path) -> Iterator[bool]:
    """Files of one run after another are moved into a folder: a model and its data with none of another run between them.

    Gives whether that is so; it is not where the system has no locks, or where someone else holds this one for long. Nor is it in a folder
    of scratch_folder(), into which a part of the same run writes: the run itself holds that lock, and would wait for itself.
    """
    lock, patience = None, time.monotonic() + _PATIENCE
    while fcntl is not None and not (folder.name.startswith(_PREFIX) and folder.name.endswith(_SUFFIX)):
        try:
            lock = _lock_folder(folder)
            break
        except BlockingIOError:
            if time.monotonic() > patience:
                break
            time.sleep(_PAUSE)
        except OSError:  # a folder that may be written but not read
            break
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _folders(parent: Path) -> list[Path]:
    with suppress(OSError):  # a folder that may be written but not listed
        return [item for item in parent.glob(f"{_PREFIX}*{_SUFFIX}") if item.is_dir() and not item.is_symlink()]
    return []


def _make_folder(parent: Path) -> tuple[Path, int | None]:
    """A folder and its lock; once more where another run took it for one that was left, in the moment before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=parent))
        try:
            return folder, _lock_folder(folder)
        except (BlockingIOError, FileNotFoundError):
            continue


def _lock_folder(folder: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None where the system has no locks.

    Raises:
        BlockingIOError: another process holds it.
        FileNotFoundError: the folder is gone.
    """
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise FileNotFoundError(folder)
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks
        os.close(descriptor)
        return None
    return descriptor


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # in use, or another user's
        lock = _lock_folder(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


@contextmanager
def whole_file(
    path: Path, *, force: bool = False, reads: Iterable[Path] = (), tell: Callable[[str], None] = lambda text: None
) -> Iterator[Path]:
    """A temporary path of the same name, moved to `path` when the block succeeds and removed when it fails.

    The temporary path lies in a folder of its own, and further files that the block writes there, such as external data, are
    moved next to `path` with it: those first, so that a model is never there without its data. Files that the model
    requires have to be named by their content (named_by_content): they never replace the data of a model that is still in place.

    Args:
        path: where the finished file goes; through a symbolic link, which stays.
        force: whether existing files may be replaced.
        reads: files that are read; none of them is replaced, whatever `force` says.
        tell: is told, in words, which files of an earlier model of this name were removed.

    Raises:
        FileAccessError: a file exists and `force` is off, it is a device or a folder, its folder cannot be written, or the disk is full.
        OptionError: a file that is read would be replaced, or two of the files are one.
    """
    reads = tuple(reads)
    place = require_writable(path, force=force, reads=reads)
    with access_errors(path), scratch_folder(place.parent) as folder:
        temporary = folder / place.name
        try:
            yield temporary
        except QConvertError as error:
            if error.file.startswith(str(folder)):
                error.file = str(path)
            raise
        files = [*sorted(item for item in folder.iterdir() if item.name != place.name), temporary]
        _require_distinct(files)
        with hold_folder_lock(place.parent) as alone:
            require_replaceable(place, force, path)
            for item in files[:-1]:
                beside = place.with_name(item.name)
                refuse_read_files(beside, reads)
                require_replaceable(beside, force or _is_equal(item, beside))
            _move(folder, files, place.parent)
            if alone:
                with suppress(OSError):
                    for name in remove_obsolete(place, (*(place.with_name(item.name) for item in files), *reads)):
                        tell(f"removed {name}, which belonged to the file that was replaced")


@contextmanager
def whole_folder(
    path: Path,
    names: Iterable[str],
    *,
    force: bool = False,
    reads: Iterable[Path] = (),
    tell: Callable[[str], None] = lambda text: None,
    made_of: str = "",
) -> Iterator[Path]:
    """A temporary folder of the same name, whose files are moved to `path` when the block succeeds; nothing is left when it fails.

    Args:
        path: where the files go; a folder that is there keeps its other files.
        names: those that the files may have. Files of these names that are there and not made again go, so that no two results mix.
        force: whether they may be replaced.
        reads: files that are read; none of them is replaced, whatever `force` says.
        tell: is told, in words, which files of an earlier result were removed.
        made_of: what the files are made of, and how; with it, those that were written stay when the run is interrupted, and are in the
            temporary folder of the next run that says the same.

    Raises:
        FileAccessError, OptionError: as whole_file().
    """
    names, reads = tuple(names), tuple(reads)
    place = require_writable_folder(path, names, force=force, reads=reads)
    with access_errors(path), resumable_folder(path, place, made_of) if made_of else scratch_folder(place.parent) as folder:
        temporary = folder / place.name
        temporary.mkdir(exist_ok=True)
        try:
            yield temporary
        except QConvertError as error:
            if error.file.startswith(str(folder)):
                error.file = str(path) + error.file.removeprefix(str(temporary))
            raise
        files = sorted(temporary.iterdir())
        _require_distinct(files)
        with hold_folder_lock(place.parent):
            if not place.exists():
                os.rename(temporary, place)
                return
            require_writable_folder(path, [item.name for item in files], force=force, reads=reads)
            _move(temporary, files, place)
            for old in (place / name for name in names if name not in {item.name for item in files}):
                if old.is_file():
                    old.unlink()
                    tell(f"removed {old.name}, which belonged to the result that was replaced")


def _is_equal(item: Path, place: Path) -> bool:
    """Whether what is in place is what would be put there."""
    return item.is_file() and place.is_file() and filecmp.cmp(item, place, shallow=False)


def _require_distinct(files: list[Path]) -> None:
    """Raises OptionError for two files whose names are one where case does not count."""
    names = [item.name.casefold() for item in files]
    for item in files:
        if names.count(item.name.casefold()) > 1:
            raise OptionError(
                f"two files would be written as {item.name!r}", remedy="Give the result another name.", rule="same-file-twice"
            )


def _move(folder: Path, files: list[Path], destination: Path) -> None:
    """Moves files out of `folder`, all or none: where one fails, those before it are taken back and what they replaced returns."""
    kept = Path(tempfile.mkdtemp(dir=folder))
    done: list[Path] = []
    try:
        for item in files[:-1]:
            place = destination / item.name
            if place.exists():
                _keep(place, kept / item.name)
            done.append(place)
            _replace(item, place)
        _replace(files[-1], destination / files[-1].name)
    except OSError:
        for place in done:
            place.unlink(missing_ok=True)
            if (kept / place.name).exists():
                os.replace(kept / place.name, place)
        raise


def _keep(place: Path, kept: Path) -> None:
    """A second name for a file that is about to be replaced; it is moved where the file system knows no second names."""
    try:
        os.link(place, kept)
    except OSError:
        os.replace(place, kept)


def _replace(item: Path, place: Path) -> None:
    """Moves a file into place, where it gets the permissions of the one that it replaces."""
    if place.exists():
        with suppress(OSError):
            shutil.copymode(place, item)
    os.replace(item, place)
