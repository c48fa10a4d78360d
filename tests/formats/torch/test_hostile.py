"""Crafted archives: every one ends in one error or in a right result, quickly, in little memory, and nothing that it says is run.

All are read in a process of their own, which has no torch and notes what it is asked to run, to import and to write.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qconvert

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "fixtures" / "torch" / "classifier"
SCRIPT, PROGRAM = FIXTURES / "eager_fbgemm_frozen.pt", FIXTURES / "pt2e_x86.pt2"
sys.path.append(str(ROOT))

from fixtures.torch_networks.archives import members, write_archive  # noqa: E402
from fixtures.torch_networks.hostile import calls, hostile  # noqa: E402

#: Archives whose graph is sound, and what is not lies in entries that no graph needs and nobody looks at.
SOUND = {"script_nested_bomb", "program_calls_in_sample"}
_CHILD = """
import json, resource, sys, time
from pathlib import Path

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchao", "torchvision"):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, NoTorch())
folder, warm = Path(sys.argv[1]), sys.argv[2:]
noted = []

def note(event, arguments):
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class", "os.remove"):
        noted.append(f"{event} {arguments}")
    elif event == "open" and any(letter in str(arguments[1]) for letter in "wxa+"):
        noted.append(f"open {arguments}")

def mark():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

import qconvert
for path in warm:
    qconvert.load(path)
sys.addaudithook(note)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in sorted(folder.iterdir()):
    noted.clear()
    before, started = mark(), time.process_time()
    try:
        qconvert.load(path)
        what, code = "sound", 0
    except qconvert.QConvertError as error:
        what, code = str(error), error.exit_code
    except BaseException as error:
        what, code = f"{type(error).__name__}: {error}", 1
    print(json.dumps([path.stem, what, code, time.process_time() - started, mark() - before, noted]), flush=True)
"""


def setstate_that_writes(trap: Path) -> dict[str, bytes]:
    """A scripted model whose layers, when PyTorch loads them, write a file first."""
    entries = members(FIXTURES / "eager_fbgemm_traced.pt")
    names = [name for name, content in entries.items() if b"def __setstate__" in content]
    for name in names:
        lines = entries[name].decode().split("\n")
        begin = next(index for index, line in enumerate(lines) if "def __setstate__" in line)
        end = next(index for index in range(begin, len(lines)) if lines[index].rstrip().endswith(":"))
        entries[name] = "\n".join([*lines[: end + 1], f"    torch.save([1], '{trap}')", *lines[end + 1 :]]).encode()
    assert names
    return entries


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Name -> what reading it gave, its exit code, seconds, growth of memory, what was run or written, bytes of the file."""
    folder, trap = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("trap") / "sprung"
    paths = hostile(SCRIPT, PROGRAM, trap, folder)
    write_archive(folder / "setstate.pt", setstate_that_writes(trap))
    command = [sys.executable, "-c", _CHILD, str(folder), str(SCRIPT), str(PROGRAM)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not trap.exists()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {name: (*rest, (folder / name).with_suffix(".pt2" if name.startswith("program") else ".pt")) for name, *rest in lines}
    assert set(found) == {*paths, "setstate"}
    return found


@pytest.mark.end_to_end
def test_each_ends_in_one_error_of_the_model(outcomes: dict[str, Any]) -> None:
    wrong = {name: what for name, (what, code, *_) in outcomes.items() if code != (0 if name in SOUND else 2) or "Traceback" in what}
    assert not wrong
    assert all(path.name in what for name, (what, *_, path) in outcomes.items() if name not in SOUND)


@pytest.mark.end_to_end
def test_nothing_is_run_imported_or_written(outcomes: dict[str, Any]) -> None:
    assert not {name: noted for name, (*_, noted, _path) in outcomes.items() if noted}


@pytest.mark.end_to_end
def test_memory_and_computing_are_bounded(outcomes: dict[str, Any]) -> None:
    """Computing time of this process, not of the clock: no file of these may take a second of a machine of ten years ago."""
    assert not {name: grown for name, (_, _, _, grown, _, path) in outcomes.items() if grown > 64 * 2**20 + 20 * path.stat().st_size}
    assert not {name: seconds for name, (_, _, seconds, *_) in outcomes.items() if seconds > 5}


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("script_calls_in_data", "posix.system"),
        ("script_unknown_global", "my.package.Model"),
        ("script_endless_loop", "does not end"),
        ("script_big_endian", "byte order of the file is 'big'"),
        ("script_version", "version 99999999999999999999"),
        ("script_unknown_statement", "With"),
        ("setstate", "aten::save"),
        ("program_newer_schema", "schema 99"),
        ("program_stride_huge", "strides"),
        ("program_unknown_target", "prim::system"),
        ("pickle", "bare pickle"),
        ("legacy", "torch.save(torch.load("),
        ("flatbuffer", "lite interpreter"),
        ("executorch", "ExecuTorch"),
        ("twice", "precede the first entry of the archive"),
        ("bomb", "expands to"),
    ],
)
def test_the_error_says_what_is_wrong(outcomes: dict[str, Any], name: str, words: str) -> None:
    assert words in outcomes[name][0]


@pytest.mark.end_to_end
def test_what_is_sound_but_for_entries_that_nobody_reads_is_the_model_itself(outcomes: dict[str, Any]) -> None:
    for name in SOUND:
        altered, original = qconvert.load(outcomes[name][-1]), qconvert.load(PROGRAM if name.startswith("program") else SCRIPT)
        assert [op.kind for op in altered.ops] == [op.kind for op in original.ops]
        for tensor in original.tensors.values():
            if tensor.data is not None:
                np.testing.assert_array_equal(tensor.data, altered.tensors[tensor.name].data)


@pytest.mark.end_to_end
@pytest.mark.cross_section
def test_the_command_line_gives_one_message_and_leaves_no_file(tmp_path: Path) -> None:
    path, trap = tmp_path / "evil.pt", tmp_path / "sprung"
    path.write_bytes(b"")
    entries = members(SCRIPT)
    name = next(name for name in entries if name.endswith("/data.pkl"))
    write_archive(path, {**entries, name: calls(trap)})
    command = [sys.executable, "-c", "from qconvert.cli.app import main; main()", "torch2onnx", str(path), str(tmp_path / "out.onnx")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}: posix.system") and "Traceback" not in done.stderr
    assert [found.name for found in tmp_path.iterdir()] == ["evil.pt"]
