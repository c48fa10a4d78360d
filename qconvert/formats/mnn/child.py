"""Run MNN in child processes, because MNN aborts its process on what it does not support."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from qconvert.errors import MissingPackageError, UnsupportedError
from qconvert.files.system import describe_exit, quote_output

#: Seconds after which a converter that has not ended is ended.
_PATIENCE = 900.0
#: What it prints of operators that it does not have.
_UNKNOWN = re.compile(r"These Op Not Support: *(.*)")
#: MNN's native module takes the arguments as one list; its wrappers on the command line pass them so that it ends in an abort.
_CONVERT = "import json, sys; import _tools; _tools.mnnconvert(json.loads(sys.argv[1]))"


def is_installed() -> bool:
    """Whether the package MNN is there, with its converter."""
    return find_spec("MNN") is not None and find_spec("_tools") is not None


def require_installed(purpose: str) -> None:
    """Raises MissingPackageError where it is not; `purpose` is the end of "…, which"."""
    if not is_installed():
        reason = f"the package MNN, which {purpose}, is not installed"
        raise MissingPackageError(reason, remedy="Install it with: pip install 'qconvert[mnn]'", rule="package-missing")


def run_converter(arguments: Sequence[str], folder: Path, result: str, patience: float = _PATIENCE) -> str:
    """Runs MNN's converter in a folder, and returns what it printed.

    Args:
        arguments: those of MNNConvert; files are named as in the folder.
        folder: where it runs.
        result: the file that it has to write there.
        patience: seconds that it may take.

    Raises:
        UnsupportedError: it crashed, took too long, or wrote no file, all of which MNN itself calls a success.
    """
    command = [sys.executable, "-P", "-c", _CONVERT, json.dumps(["MNNConvert", *arguments])]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired as error:
        printed = quote_output(error.output or b"")
        raise UnsupportedError(f"MNN's converter did not end within {patience:.0f} s{printed}", rule="converter-timeout") from error
    printed = quote_output(done.stdout)
    unknown = _UNKNOWN.search(done.stdout.decode(errors="replace"))
    if unknown:
        kinds = ", ".join(dict.fromkeys(item.strip().removeprefix("ONNX::") for item in unknown[1].split(",") if item.strip()))
        raise UnsupportedError(f"MNN's converter has no operator for {kinds}", rule="converter-lacks-operator")
    if done.returncode:
        raise UnsupportedError(f"MNN's converter {describe_exit(done.returncode)}{printed}", rule="converter-failed")
    if not (folder / result).is_file() or not (folder / result).stat().st_size:
        raise UnsupportedError(f"MNN's converter wrote no file{printed}", rule="converter-wrote-nothing")
    return done.stdout.decode(errors="replace")
