"""The folder in which a result is made: next to it, so that it can be moved into place at once, and never there for long.

A run holds a lock on its folder. A folder without one was left by a run that was killed, and the next run next to it removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["hold_folder_lock", "scratch_folder"]

_PREFIX, _SUFFIX = ".qconvert-", ".part"
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
