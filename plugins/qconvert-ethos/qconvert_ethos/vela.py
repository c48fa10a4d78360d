"""Vela in a process of its own: the operators left to the CPU with reasons, and its estimates. Its output is untrusted data."""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from qconvert.plugin import (
    Engine,
    Layer,
    MissingPackageError,
    ModelFile,
    QConvertError,
    RuntimeRefusedError,
    TfliteListed,
    tflite_operators,
)
from qconvert_ethos.constraints import NO_KERNELS

#: The time limit of Vela in seconds, and the most bytes of its output that are read.
PATIENCE, _MOST_PRINTED = 600.0, 2**22
#: Seconds between two looks at the process.
_GLANCE = 0.02
#: Lines of a crash that are shown, causes that are listed, and characters of each.
_LINES, _CAUSES, _LONGEST = 3, 8, 200
#: The custom operator in place of the operators on the NPU.
_NPU = "ethos-u"
#: Vela's message for an operator that it leaves to the CPU.
_REASON = re.compile(r"^Warning \(supported operators\) operator: (\w+), ofm: .*\nReason: (.*)", re.M)
#: Columns of the summary that are reported: name -> (title, unit, factor).
_ESTIMATES: Mapping[str, tuple[str, str, float]] = {
    "cycles_total": ("", " cycles", 1),
    "inference_time": ("", " ms", 1e3),
    "sram_memory_used": ("SRAM ", " KiB", 1),
    "dram_memory_used": ("DRAM ", " KiB", 1),
    "off_chip_flash_memory_used": ("flash ", " KiB", 1),
    "on_chip_flash_memory_used": ("on-chip flash ", " KiB", 1),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of Vela for a file.

    Attributes:
        on_cpu: the operators that it leaves to the CPU.
        reasons: (operator, why it is left to the CPU) -> how often.
        estimates: column of Vela's summary -> number.
    """

    on_cpu: tuple[TfliteListed, ...]
    reasons: Mapping[tuple[str, str], int]
    estimates: Mapping[str, float]

    def is_on_cpu(self, op: TfliteListed) -> bool:
        """Return whether an operator of the file is left to the CPU. Vela may rename its inputs or its outputs."""
        same = (item for item in self.on_cpu if item.name == op.name)
        return any(item.inputs == op.inputs or {*item.outputs} & {*op.outputs} for item in same)


def build(family: str, file: ModelFile) -> Engine:
    """Compile a file and say for each of its operators whether the NPU runs it; see qconvert.plugin.Runtime.

    Args:
        family: such as "ethos-u55".
        file: with the number of MACs a cycle as its kernels.

    Raises:
        MissingPackageError: Vela is not installed.
        RuntimeRefusedError: Vela refuses the file, crashes, or takes too long.
    """
    found = compile_file(file.path, f"{family}-{file.kernels}")
    layers = tuple(_layers(file.path, found))
    estimates = ", ".join(format_estimates(found.estimates)) or "it gives no estimates"
    notes = [f"Vela {version('ethos-u-vela')} compiled it for {family.title()}-{file.kernels}: {estimates}"]
    causes = Counter(found.reasons).most_common()
    notes += [f"Vela leaves {count} {operator} to the CPU: {reason}" for (operator, reason), count in causes[:_CAUSES]]
    notes += [f"and for {len(causes) - _CAUSES} further reasons"] if len(causes) > _CAUSES else []
    return Engine(layers, tuple(notes))


def refuse_to_run(file: ModelFile) -> NoReturn:
    """Raise RuntimeRefusedError: only an Ethos-U runs a compiled file."""
    raise RuntimeRefusedError(
        "Vela compiles models for a device and estimates their speed, but runs none",
        file=str(file.path),
        remedy="`qconvert audit --run` asks it. To check the outputs: --kernels litert:reference, or tflite-micro.",
        rule="cannot-run",
    )


def compile_file(path: Path, accelerator: str, patience: float = PATIENCE) -> Compiled:
    """Compile a .tflite file.

    Args:
        path: the file.
        accelerator: as Vela's --accelerator-config has it, such as "ethos-u55-128".
        patience: time limit in seconds.

    Raises:
        MissingPackageError: Vela is not installed.
        RuntimeRefusedError: Vela refuses the file, crashes, or takes too long.
    """
    try:
        version("ethos-u-vela")
    except PackageNotFoundError:
        remedy = "Install it with: pip install 'ethos-u-vela>=5.2,<6'"
        raise MissingPackageError("Vela, which compiles for Ethos-U, is not installed", remedy=remedy, rule="package-missing") from None
    with tempfile.TemporaryDirectory() as folder:
        printed = _run_vela(path, accelerator, Path(folder), patience)
        made = Path(folder, f"{path.stem}_vela.tflite")
        try:
            operators = tflite_operators(made)
        except QConvertError as error:
            raise _refusal_error(path, f"wrote no readable file: {error.reason}", printed) from None
        on_cpu = tuple(op for op in operators if op.name not in (_NPU, *NO_KERNELS))
        # Without the name of the tensor, so that equal reasons are counted together.
        said = ((name, re.sub(r" \(.*\)$", "", words.strip())[:_LONGEST]) for name, words in _REASON.findall(printed))
        reasons = Counter((name, words) for name, words in said if name not in (*NO_KERNELS, "None"))
        return Compiled(on_cpu, reasons, _read_summary(Path(folder)))


def _run_vela(path: Path, accelerator: str, folder: Path, patience: float) -> str:
    """Compile a file into a folder; return the output of Vela."""
    command = [sys.executable, "-m", "ethosu.vela", str(path.absolute()), "--accelerator-config", accelerator, "--output-dir", str(folder)]
    until = time.monotonic() + patience
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while process.poll() is None:
                if time.monotonic() > until:
                    raise _refusal_error(path, f"took longer than {patience:.0f} s", "")
                if os.fstat(output.fileno()).st_size > _MOST_PRINTED:
                    raise _refusal_error(path, f"printed more than {_MOST_PRINTED:,} bytes", "")
                time.sleep(_GLANCE)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        printed = output.read(_MOST_PRINTED).decode("utf-8", "replace")
    if code := process.returncode:
        raise _refusal_error(path, f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}", printed)
    return printed


def _refusal_error(path: Path, what: str, printed: str) -> RuntimeRefusedError:
    lines = [line.strip()[:_LONGEST] for line in printed.splitlines() if "rror" in line or line.strip().startswith("- ")][-_LINES:]
    said = f" It printed: {' '.join(lines)}" if lines else ""
    return RuntimeRefusedError(f"Vela {what}.{said}", file=str(path), rule="model-refused")


def _layers(path: Path, found: Compiled) -> Iterator[Layer]:
    """Yield the operators of the file, each with its device: NPU or CPU."""
    for op in tflite_operators(path):
        if op.name not in NO_KERNELS:
            on_cpu = found.is_on_cpu(op)
            yield Layer(op.name, tuple(filter(None, op.outputs)), not on_cpu, "CPU" if on_cpu else "NPU")


def _read_summary(folder: Path) -> dict[str, float]:
    """Return the numbers of the table that Vela writes next to a compiled file."""
    row: Mapping[str, str] = {}
    try:
        for path in folder.glob("*_summary_*.csv"):
            with path.open(newline="", encoding="utf-8", errors="replace") as lines:
                row = next(csv.DictReader(lines), {})
    except (OSError, csv.Error):
        pass
    return {name: number for name in _ESTIMATES if (number := _parse_number(row.get(name))) is not None}


def _parse_number(text: str | None) -> float | None:
    """Return a finite number; None for anything else."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def format_estimates(found: Mapping[str, float]) -> Iterator[str]:
    """Yield Vela's estimates in words: cycles, time, and the memories that are used."""
    for name, (title, unit, factor) in _ESTIMATES.items():
        if found.get(name):
            yield f"{title}{found[name] * factor:,.4g}{unit}" if unit != " cycles" else f"{title}{found[name]:,.0f}{unit}"
