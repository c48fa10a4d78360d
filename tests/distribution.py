"""Builds wheel and sdist, looks into them, and installs each in a fresh environment with every Python that is there: `make dist`.

python tests/distribution.py FOLDER [--pythons python3.11,/path/to/python3.12]

Needs build, hatchling and twine (the group `release`). Dependencies come from the usual index, held to constraints.txt.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"
#: What the wheel has besides modules: data, the scripts of pages, licences.
DATA = (".py", ".json", ".js", ".css", ".html", ".txt", ".typed", ".jinja", ".j2", ".svg")
_CALL = "import qconvert, sys; print(len(qconvert.load(sys.argv[1]).ops), qconvert.__version__)"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command prints; it has to succeed."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def tracked() -> set[str]:
    """The files of the package that git knows, or all where there is no git."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        return {*run("git", "ls-files", "qconvert", cwd=ROOT).split("\n")} - {""}
    return {str(path.relative_to(ROOT)) for path in (ROOT / "qconvert").rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def wheel_faults(wheel: Path) -> Iterator[str]:
    """What the wheel has too much or lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    meta = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    wanted = tracked()
    yield from (f"the wheel lacks {name}" for name in sorted(wanted - names))
    yield from (f"the wheel has {name} besides" for name in sorted(names - meta - wanted))
    yield from (f"the wheel has {name}, which is no module and no data" for name in sorted(names - meta) if not name.endswith(DATA))
    for licence in ("LICENSE", "NOTICE"):
        if not any(name.endswith(f"licenses/{licence}") for name in meta):
            yield f"the wheel lacks {licence}"
    scripts = {name.rpartition("/")[0] for name in names if name.endswith(".min.js")}
    yield from (f"{folder} has scripts and no LICENSES.txt" for folder in sorted(scripts) if f"{folder}/LICENSES.txt" not in names)


def sdist_faults(sdist: Path) -> Iterator[str]:
    """What the sdist has too much or lacks."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    alone = {"pyproject.toml", "PKG-INFO", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", ".gitignore"}
    wanted = tracked() | alone - {".gitignore"}
    yield from (f"the sdist lacks {name}" for name in sorted(wanted - names))
    yield from (f"the sdist has {name} besides" for name in sorted(names - wanted - alone))


def built(folder: Path) -> tuple[Path, Path]:
    """Wheel and sdist, the wheel built of the sdist as pip would."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def pythons() -> list[Path]:
    """A Python of each version that is there, on the path or under pyenv."""
    found = []
    for version in VERSIONS:
        places = [Path(path) for path in [shutil.which(f"python{version}")] if path]
        places += sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
        working = [
            place for place in places if subprocess.run([place, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0
        ]
        found += working[:1]
    return found


def tried(python: Path, packages: Sequence[Path]) -> str:
    """Installs each package in one fresh environment, the first with its dependencies, and uses what was installed; says what it did."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run(python, "-m", "venv", folder / "venv")
        own, program = folder / "venv" / "bin" / "python", folder / "venv" / "bin" / "qconvert"
        for number, package in enumerate(packages):
            besides = ("--constraint", ROOT / "constraints.txt") if number == 0 else ("--force-reinstall", "--no-deps")
            run(own, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *besides, package)
            assert "convert" in run(program, "--help", cwd=folder)
            result = folder / f"{number}.onnx"
            assert "kept:" in run(program, "convert", MODEL, result, cwd=folder)
            assert "Conv" in run(own, "-m", "qconvert", "inspect", result, cwd=folder)
            page = folder / f"{number}.html"
            run(program, "view", MODEL, page, "--no-values", cwd=folder)
            assert page.stat().st_size > 100_000
            run(own, "-c", _CALL, MODEL, cwd=folder)
        run(own, "-m", "pip", "check", cwd=folder)
    return f"{run(python, '--version').strip()}: wheel and sdist installed, and a model converted, in {time.monotonic() - start:.0f} s"


def main(arguments: Sequence[str]) -> int:
    """Builds and tries; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pythons", default="", help="which to try, with commas; by default one of each version that is there")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    wheel, sdist = built(given.folder.resolve())
    faults = [*wheel_faults(wheel), *sdist_faults(sdist)]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {sdist.name}: {sdist.stat().st_size:,} bytes; {time.monotonic() - start:.0f} s")
    chosen = [Path(name) for name in given.pythons.split(",") if name] or pythons()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        print(*pool.map(lambda python: tried(python, (wheel, sdist)), chosen), sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
