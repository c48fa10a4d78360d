"""Which plugins installed packages announce."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from qconvert.plugins.hooks import GROUP

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["DISABLE", "announced_plugins", "is_disabled"]

#: The variable of the environment that keeps installed plugins from being loaded: 1 for all, or their names with commas between.
DISABLE = "QCONVERT_DISABLE_PLUGINS"


def is_disabled(name: str) -> bool:
    """Whether the environment says that an installed plugin is not to be loaded."""
    wanted = os.environ.get(DISABLE, "")
    return wanted == "1" or name in {part.strip() for part in wanted.split(",")}


def announced_plugins() -> list[EntryPoint]:
    """The entry points of qconvert's group.

    importlib.metadata takes longer to import than the rest of the command line does, so it is asked only where some package may announce
    one.
    """
    if not any(_may_announce(folder or os.curdir) for folder in sys.path):
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def _may_announce(folder: str) -> bool:
    """Whether a package in a folder of sys.path may have entry points in the group; archives and eggs are not looked into."""
    try:
        with os.scandir(folder) as items:
            found = [item.path for item in items if item.name.endswith((".dist-info", ".egg-info", ".egg"))]
    except NotADirectoryError:
        return True
    except OSError:  # a path that is not there, or that may not be read
        return False
    return any(path.endswith(".egg") or _has_group(path) for path in found)


def _has_group(metadata: str) -> bool:
    try:
        with open(os.path.join(metadata, "entry_points.txt"), "rb") as stream:
            return f"[{GROUP}]".encode() in stream.read().replace(b" ", b"")
    except OSError:
        return False
