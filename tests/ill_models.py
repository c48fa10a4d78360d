"""Models that end the process that reads them, or keep it for ever: a plugin whose files say which, for batches of them."""

from __future__ import annotations

import os
from pathlib import Path

_PLUGIN = """
import os
import subprocess
import sys
from qconvert.plugin import Format, hookimpl

def read(path, checked, **options):
    what = path.read_text()
    if what == "hang":
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"])
    elif what == "crash":
        os.abort()
    bytearray(2**46)

@hookimpl
def qconvert_formats():
    return [Format("ill", (".ill",), "files that are never read", read=read)]
"""
#: What each of the files does: it waits for a process that sleeps, aborts, or asks for 64 TiB.
ILL = ("hang", "crash", "oversize")


def with_ill_models(folder: Path, *names: str) -> dict[str, str]:
    """Write files of these names into a folder, and return an environment in which qconvert has the plugin that reads them."""
    for name in names:
        (folder / f"{name}.ill").write_text(name)
    home = folder.with_name(f"{folder.name}_plugin")
    info = home / "ill_models_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ill_models_plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qconvert]\nill = ill_models_plugin\n")
    (home / "ill_models_plugin.py").write_text(_PLUGIN)
    path = os.pathsep.join([str(home), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}
