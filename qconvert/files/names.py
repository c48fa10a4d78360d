"""Rules for the paths of results: files that may be replaced, files that must not be, and symbolic links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qconvert.errors import FileAccessError, MissingFileError, OptionError, QConvertError

#: As many links as Linux follows.
_MOST_LINKS = 40
#: Where names stand for open files: one that is redirected to a file looks like that file.
_OPEN_FILES = ("/proc", "/dev/fd")
_ANOTHER = "Name another file; a conversion takes - for standard output too."


def require_utf8(path: Path) -> None:
    """Raises FileAccessError for a name that is not UTF-8, since model files and reports hold the names of files as text, or that no file
    can have."""
    if "\0" in str(path):
        raise FileAccessError("the name of the file holds a character of code 0", file=str(path), rule="file-name")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FileAccessError("the name of the file is not UTF-8", file=str(path), remedy="Rename the file.", rule="file-name") from None


@contextmanager
def access_errors(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into one FileAccessError that names `path`."""
    try:
        yield
    except QConvertError:  # of a file that the block reads
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = ""
        if isinstance(error, FileNotFoundError) and not os.path.isdir(path.parent):
            reason, remedy = f"the folder {path.parent} does not exist", "Create it, or name another."
        raise FileAccessError(f"cannot be written: {reason}", file=str(path), remedy=remedy, rule="not-writable") from error


def unreadable(path: Path, error: Exception) -> FileAccessError:
    """The error for a file that cannot be read: a MissingFileError where it is not there."""
    kind = MissingFileError if isinstance(error, FileNotFoundError) else FileAccessError
    return kind(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=str(path), rule="not-readable")


def require_there(path: Path) -> None:
    """Raises FileAccessError unless a plain file or a folder is there: a pipe would be waited for."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise MissingFileError("does not exist", file=str(path), rule="file-not-found") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileAccessError("is neither a file nor a folder", file=str(path), rule="not-a-regular-file")


def require_writable(path: Path, *, force: bool = False, reads: Iterable[Path] = ()) -> Path:
    """Where a result goes, symbolic links followed.

    Args:
        path: as the user names it.
        force: whether a file there may be replaced.
        reads: files that must not be.

    Raises:
        FileAccessError: the name cannot be written, a file exists and `force` is off, or what exists is no regular file.
        OptionError: it is one of the files that are read.
    """
    require_utf8(path)
    with access_errors(path):
        place = _follow_links(path)
        if not place.parent.is_dir():
            os.stat(place.parent)
            raise FileAccessError(f"cannot be written: {place.parent} is not a folder", file=str(path), rule="not-a-folder")
        refuse_read_files(place, reads, path)
        require_replaceable(place, force, path)
    return place


def require_writable_folder(path: Path, names: Iterable[str], *, force: bool = False, reads: Iterable[Path] = ()) -> Path:
    """Where a folder of results goes, symbolic links followed; it need not be there.

    Args:
        path: as the user names it.
        names: those that files of a result may have in it. Other files stay.
        force: whether files of these names may be replaced.
        reads: files that must not be.

    Raises:
        FileAccessError: the name cannot be written, is a file's, or the folder has such files and `force` is off.
        OptionError: one of these is a file that is read.
    """
    require_utf8(path)
    with access_errors(path):
        place = Path(os.path.abspath(_follow_links(path)))
        if not place.parent.is_dir():
            os.stat(place.parent)
            raise FileAccessError(f"cannot be written: {place.parent} is not a folder", file=str(path), rule="not-a-folder")
        if place.exists() and not place.is_dir():
            raise FileAccessError(
                "is a file; the result requires a folder", file=str(path), remedy="Name another folder.", rule="not-a-folder"
            )
        for name in names:
            refuse_read_files(place / name, reads, path / name)
            require_replaceable(place / name, force, path / name)
    return place


def _follow_links(path: Path) -> Path:
    """The path after a chain of links, whether or not there is a file; a name of an open file of this process is refused."""
    place = path
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(place.parent)
        if any(folder == known or folder.startswith(f"{known}/") for known in _OPEN_FILES):
            raise FileAccessError("is not a regular file", file=str(path), remedy=_ANOTHER, rule="not-a-regular-file")
        if not place.is_symlink():
            return place
        place = place.parent / os.readlink(place)
    raise FileAccessError("too many symbolic links lead from it", file=str(path), rule="too-many-links")


def require_replaceable(place: Path, force: bool, path: Path | None = None) -> None:
    """Raises FileAccessError, naming `path`, where `place` holds what must stay: a folder, a device, a pipe, or without `force` a file."""
    name = str(path or place)
    if place.is_dir():
        raise FileAccessError("is a directory", file=name, remedy=_ANOTHER, rule="is-a-folder")
    if place.exists() and not place.is_file():  # a device such as /dev/null would be replaced by a file
        raise FileAccessError("is not a regular file", file=name, remedy=_ANOTHER, rule="not-a-regular-file")
    if place.exists() and not force:
        raise FileAccessError("already exists", file=name, remedy="Use --force to replace it.", rule="file-exists")


def refuse_read_files(place: Path, reads: Iterable[Path], path: Path | None = None) -> None:
    """Raises OptionError where `place`, by whatever name or hard link, is one of the files that the conversion reads."""
    for source in reads:
        if place.exists() and source.exists() and place.samefile(source):
            name = "" if source.name == place.name else f" ({source})"
            raise OptionError(
                f"the conversion reads this file{name}, and would overwrite it",
                file=str(path or place),
                remedy="Give the result another name.",
                rule="source-overwritten",
            )
