"""Folders of models at once: what comes of each, what is done again, and what ends a model but not the batch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clusters import four_workers
from ill_models import ILL, with_ill_models
from refusals import refused

from qconvert import Encoding, Encodings, QParams, Quantization, batch, load, partition, save_encodings
from qconvert.batches.driver import plan_batch
from qconvert.batches.jobs import run_job
from qconvert.errors import FileAccessError, OptionError
from qconvert.graph.metadata import OPTIONS
from qconvert.plugins import format_named

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"
SMALL = FIXTURES / "onnx" / "brevitas_int4_weights.onnx"
KEYWORDS = FIXTURES / "tiny_kws_dscnn_int8.tflite"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    (models / "in").mkdir(parents=True)
    shutil.copy(KEYWORDS, models / "in" / "kws.tflite")
    shutil.copy(SMALL, models / "in" / "kws.onnx")
    (models / "broken.tflite").write_bytes(b"no model")
    (models / "notes.txt").write_text("no model")
    (models / "link.onnx").symlink_to("in/kws.onnx")
    (models / "round").symlink_to("in")
    os.mkfifo(models / "pipe.onnx")
    return models


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "qconvert", "batch", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_each_model_ends_in_its_way_and_once(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told: list[tuple[str, int, int]] = []
    report = batch(folder, out, check=True, samples=1, jobs=2, progress=lambda *step: told.append(step))
    assert {item.name: item.status for item in report.outcomes} == {
        "broken.tflite": "refused",
        "in/kws.onnx": "passed",
        "in/kws.tflite": "passed",
        "link.onnx": "skipped",
        "pipe.onnx": "skipped",
    }
    reasons = {item.name: item.reason for item in report.outcomes}
    assert (reasons["link.onnx"], reasons["pipe.onnx"]) == ("is a link", "is not a regular file")
    assert "FlatBuffer" in reasons["broken.tflite"] or "TFLite" in reasons["broken.tflite"]
    written = {item.result for item in report.outcomes if item.result}
    assert written == {"in/kws.tflite.onnx", "in/kws.onnx.onnx"} and all((out / name).is_file() for name in written)
    assert told[-1] == ("models", 3, 3)
    assert json.loads((out / "qconvert-batch" / "results.json").read_text())["counts"] == {"passed": 2, "skipped": 2, "refused": 1}

    times = {name: (out / name).stat().st_mtime_ns for name in written}
    again = batch(folder, out, check=True, samples=1)
    assert again.outcomes == report.outcomes and [item.before for item in again.outcomes] == [True, True, True, False, False]
    assert times == {name: (out / name).stat().st_mtime_ns for name in written}
    (out / "in" / "kws.onnx.onnx").unlink()
    os.utime(folder / "broken.tflite")
    third = batch(folder, out, check=True, samples=1)
    assert {item.name: item.before for item in third.outcomes if item.status != "skipped"} == {
        "broken.tflite": False,
        "in/kws.onnx": False,
        "in/kws.tflite": True,
    }


def test_the_command_ends_by_its_policy(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run(folder, out, "--to", "qgraph")
    assert first.returncode == 2 and "5 models: 2 converted, 2 skipped, 1 refused" in first.stdout, first.stderr
    assert "broken.tflite" in first.stdout and "in/kws" not in first.stdout
    unequal = run(folder, out, "--to", "qgraph", "--fail-on", "unequal", "--verbose")
    assert unequal.returncode == 0 and "in/kws.tflite" in unequal.stdout and "3 were done before" in unequal.stdout
    assert run(folder, out, "--to", "qgraph", "--fail-on", "never", "--quiet").stdout == ""


def test_a_model_that_takes_too_long_is_ended_and_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "in").mkdir(parents=True)
    (tmp_path / "out" / "in" / "kws.tflite.onnx").write_text("of an earlier batch")
    report = batch(folder, tmp_path / "out", timeout=0.001)
    ended = {item.name: item.reason for item in report.outcomes if item.status == "ended"}
    assert ended["in/kws.tflite"] == "convert did not answer within 0.001 s" and len(ended) == 3
    assert not (tmp_path / "out" / "in" / "kws.tflite.onnx").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_a_model_that_takes_too_much_memory_is_no_end_of_the_batch(folder: Path, tmp_path: Path) -> None:
    report = batch(folder, tmp_path / "out", memory=0.02)
    assert {item.status for item in report.outcomes} <= {"skipped", "ended"}, report.outcomes
    assert len(report.outcomes) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
@pytest.mark.parametrize("before", ["ulimit -v 6000000", "cd gone; rmdir ../gone", "exec 2>&-"])
def test_surroundings_of_services(before: str, folder: Path, tmp_path: Path) -> None:
    """A limit below the batch's own, a folder that was removed, and no error stream."""
    (tmp_path / "gone").mkdir()
    command = f"cd {tmp_path}; {before}; exec {sys.executable} -m qconvert batch {folder / 'in'} {tmp_path / 'out'} --to qgraph"
    environment = {**os.environ, "PYTHONPATH": str(FIXTURES.parent)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout.partition(";")[0].split("\n")[-1]) == (0, "2 models: 2 converted"), done.stderr


def marked_processes(mark: str) -> list[int]:
    """The processes whose environment names a mark, as those that a batch starts have it of the batch."""
    found = []
    for item in Path("/proc").iterdir():
        with suppress(OSError):
            if mark.encode() in (item / "environ").read_bytes():
                found.append(int(item.name))
    return found


def forked_processes() -> list[int]:
    """The processes that fork servers of this process have forked for commands."""
    parents = {}
    for item in Path("/proc").iterdir():
        with suppress(OSError):
            if b"command_child.py" in (item / "cmdline").read_bytes():
                parents[int(item.name)] = int((item / "stat").read_text().rpartition(")")[2].split()[1])
    return [process for process, parent in parents.items() if parents.get(parent) == os.getpid()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_batch_that_is_ended_leaves_nothing_running_and_goes_on(end: signal.Signals, tmp_path: Path) -> None:
    """What was being done when it ended has no outcome, least of all a bad one, and is done in the next run; what was done is not."""
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    shutil.copy(SMALL, models / "a.onnx")
    environment = with_ill_models(models, "hang")
    mark = f"BATCH={tmp_path}"
    command = [sys.executable, "-m", "qconvert", "batch", str(models), str(out), "--jobs", "2", "--json"]

    def heard() -> None:
        """What a shell starts in the background ignores it, and so would what that starts."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment, "BATCH": str(tmp_path)}, preexec_fn=heard
    )
    records = out / "qconvert-batch"
    until = time.monotonic() + 100
    # The batch, its fork server, the process that hangs, and the process for which that waits.
    while not (list(records.glob("*.json")) and len(marked_processes(mark)) >= 4) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(end)
    process.communicate()
    assert process.returncode == (130 if end == signal.SIGINT else -end)
    until = time.monotonic() + 20
    while marked_processes(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert marked_processes(mark) == []
    done = {path: path.stat().st_mtime_ns for path in records.glob("*.json")}
    assert [json.loads(path.read_text())["name"] for path in done] == ["a.onnx"]
    (models / "hang.ill").write_text("oversize")
    report = json.loads(subprocess.run([*command, "--fail-on", "never"], capture_output=True, check=True, env=environment).stdout)
    assert report["counts"] == {"converted": 1, "ended": 1} and sum(item["before"] for item in report["outcomes"]) == 1
    assert done == {path: path.stat().st_mtime_ns for path in done}
    assert sorted(path.name for path in out.iterdir()) == ["a.onnx", "qconvert-batch"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc, and address space is limited on Linux")
def test_models_that_hang_crash_or_want_too_much_are_named_and_none_is_lost(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for number in range(4):
        shutil.copy(SMALL, models / f"{number}.onnx")
    environment = {**with_ill_models(models, *ILL), "BATCH": str(tmp_path)}
    command = [sys.executable, "-m", "qconvert", "batch", str(models), str(tmp_path / "out"), "--jobs", "2", "--timeout", "5", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 3, done.stderr
    found = {item["name"]: (item["status"], item["reason"].partition(";")[0]) for item in json.loads(done.stdout)["outcomes"]}
    assert found == {
        **{f"{number}.onnx": ("converted", "") for number in range(4)},
        "crash.ill": ("fault", "convert's process was ended by SIGABRT"),
        "hang.ill": ("ended", "convert did not answer within 5 s"),
        "oversize.ill": ("ended", "convert was ended, as it needs more than 8 GiB of memory"),
    }
    assert marked_processes(f"BATCH={tmp_path}") == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("whole", [False, True])
def test_processes_that_are_ended_from_outside_are_no_fault_of_qconvert(whole: bool, tmp_path: Path) -> None:
    """Linux ends the process that takes the most memory where there is none left. If it is the fork server, the batch starts another."""
    models = tmp_path / "models"
    models.mkdir()
    for number in range(40):
        shutil.copy(SMALL, models / f"{number:02}.onnx")
    ended = []

    def end_one() -> None:
        until = time.monotonic() + 100
        while not ended and time.monotonic() < until:
            for process in forked_processes()[:1]:
                if whole:
                    process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
                    ended.append(process)

    thread = threading.Thread(target=end_one)
    thread.start()
    report = batch(models, tmp_path / "out")
    thread.join()
    bad = [(item.status, item.reason) for item in report.outcomes if item.status != "converted"]
    killed = ("ended", "convert's process was ended by SIGKILL, as systems do that run out of memory")
    assert len(ended) == 1 and len(report.outcomes) == 40
    assert bad == ([] if whole else [killed])


@pytest.mark.parametrize(
    ("given", "suffix"),
    [
        ({"target": "torch-x86"}, ".pt2"),
        ({"to": "torch", "form": "program"}, ".pt2"),
        ({"to": "torch"}, ".pt"),
    ],
)
def test_results_have_the_suffix_of_what_is_asked_for(given: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    """PyTorch's programs and modules are two forms of one format, told apart by their names."""
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(SMALL, models / "a.onnx")
    report = batch(models, tmp_path / "out", **given)
    assert [(item.status, item.result) for item in report.outcomes] == [("converted", f"a{suffix}")], report.outcomes[0].reason


def test_all_passes_that_are_named_run(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(KEYWORDS, models / "a.tflite")
    passes = ["narrow_range", "per_tensor_to_per_axis"]
    report = batch(models, tmp_path / "out", passes=passes)
    assert [item.status for item in report.outcomes] == ["converted"], report.outcomes[0].reason
    assert json.loads(load(tmp_path / "out" / "a.onnx").metadata[OPTIONS])["passes"] == passes


def test_options_name_files_from_where_the_batch_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of both batches are forked from one, which was started in the first folder."""
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(FIXTURES / "digits" / "float.onnx", models / "a.onnx")
    for folder, scale in (("first", 0.25), ("second", 0.5)):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        save_encodings(Encodings({"x": Encoding(QParams("int8", Quantization.per_tensor(scale)))}), "scales.json")
        report = batch(models, tmp_path / folder / "out", to="qgraph", encodings="scales.json")
        assert report.counts == {"converted": 1}, report.outcomes
        scales = {float(item.quantization.scale[0]) for item in load("out/a.qgraph").tensors.values() if item.quantization is not None}
        assert scales == {scale}


def test_modules_beside_the_models_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(SMALL, models / "a.onnx")
    for name in ("numpy", "json", "typer"):
        (models / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(models)
    assert batch(models, tmp_path / "out", to="qgraph").counts == {"converted": 1}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "rule", "named"),
    [
        ({"to": "encodings"}, "format-not-written", "encodings"),
        ({"to": "none"}, "unknown-format", "'none'"),
        ({"to": "onnx", "target": "tflite"}, "target-of-other-format", "tflite"),
        ({"jobs": -1}, "number-out-of-range", "samples"),
        ({"samples": 0}, "number-out-of-range", "samples"),
        ({"timeout": float("nan")}, "number-out-of-range", "samples"),
        ({"timeout": 1e300}, "number-out-of-range", "samples"),
        ({"memory": float("nan")}, "number-out-of-range", "samples"),
        ({"memory": float("inf")}, "number-out-of-range", "samples"),
    ],
)
def test_wrong_options_are_the_users(options: dict[str, Any], rule: str, named: str, folder: Path, tmp_path: Path) -> None:
    with refused(OptionError, rule, holds=(named,)):
        batch(folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("results", ["models", "."])
def test_no_result_takes_the_place_of_a_model(results: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "models").mkdir(parents=True)
    for path in (models / "a.onnx", models / "models" / "a.onnx"):
        path.write_bytes(b"a model that ONNX does not read")
    with refused(OptionError, "result-is-source"):
        batch(models, tmp_path / results)
    assert (models / "a.onnx").is_file() and (models / "models" / "a.onnx").is_file()


def test_a_folder_without_models_is_an_error(tmp_path: Path) -> None:
    with refused(OptionError, "no-models"):
        batch(tmp_path, tmp_path / "out")
    with refused(FileAccessError, "file-not-found"):
        batch(tmp_path / "absent", tmp_path / "out")
    with refused(FileAccessError, "not-readable"):
        batch(tmp_path / ("x" * 300), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out.txt").write_text("")
    shutil.copy(SMALL, tmp_path / "a.onnx")
    with refused(FileAccessError, "not-writable"):
        batch(tmp_path, tmp_path / "out.txt")


def test_scales_and_labels_are_no_models(tmp_path: Path) -> None:
    """Manifests of partitions have their suffix."""
    shutil.copy(SMALL, tmp_path / "a.onnx")
    (tmp_path / "labels.json").write_text('{"0": "cat"}')
    (tmp_path / "scales.json").write_text('{"encodings": []}')
    (tmp_path / "manifest.json").write_text('{"qconvert_partition": 1}')
    report = batch(tmp_path, tmp_path / "out", to="qgraph")
    assert {item.name: item.status for item in report.outcomes} == {"a.onnx": "converted", "manifest.json": "refused"}
    assert report.sentence.startswith("2 models: ")


def test_parts_of_a_partition_are_no_models_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    partition(KEYWORDS, "tflite-micro", split=tmp_path / "models" / "parts")
    report = batch(tmp_path / "models", tmp_path / "out")
    found = {item.name: (item.status, item.reason) for item in report.outcomes}
    assert found.pop("parts/manifest.json") == ("converted", "") and (tmp_path / "out" / "parts" / "manifest.onnx").is_file()
    assert set(found) == {"parts/00_tflite-micro_0.tflite", "parts/values.qgraph"}
    assert set(found.values()) == {("skipped", "belongs to parts/manifest.json")}


def test_one_model_is_no_models(tmp_path: Path) -> None:
    report = batch(shutil.copy(SMALL, tmp_path / "a.onnx").parent, tmp_path / "out", to="qgraph")
    assert report.sentence.startswith("1 model: 1 converted")


def test_results_within_the_folder_are_no_models(tmp_path: Path) -> None:
    shutil.copy(SMALL, tmp_path / "a.onnx")
    for _ in range(2):
        report = batch(tmp_path, tmp_path / "out", to="qgraph")
        assert [(item.name, item.status) for item in report.outcomes] == [("a.onnx", "converted")]


def test_a_damaged_record_is_none(folder: Path, tmp_path: Path) -> None:
    plan = plan_batch(folder, tmp_path / "out", format_named("qgraph"), ".qgraph", [], None, timeout=60, memory=0)
    job = next(job for job in plan.jobs if job.name == "in/kws.onnx")
    assert run_job(job).status == "converted" and run_job(job).before is not False
    whole = json.loads(Path(job.record).read_text())
    wrong = [
        {**whole, name: value}
        for name, value in (("name", "other"), ("status", "well"), ("seconds", "1"), ("operators", -1), ("target", [1]))
    ]
    texts = ["", "{", "[]", '{"key": 1}', json.dumps({"key": job.key, "result": "", "other": 1}), "[" * 100_000, *map(json.dumps, wrong)]
    for text in texts:
        Path(job.record).write_text(text)
        assert not run_job(job).before
    assert run_job(job).before


def test_a_worker_of_a_cluster_dies_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    for number in range(12):
        shutil.copy(SMALL, models / f"{number}.onnx")
    with four_workers() as cluster:

        def end_one() -> None:
            while not list((out / "qconvert-batch").glob("*.json")):
                time.sleep(0.02)
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

        thread = threading.Thread(target=end_one)
        thread.start()
        report = batch(models, out, to="qgraph", scheduler=cluster.scheduler_address)
        thread.join()
    assert report.counts == {"converted": 12}
    assert sorted(item.name for item in report.outcomes) == sorted(f"{number}.onnx" for number in range(12))
    assert len(list((out / "qconvert-batch").glob("*.json"))) == 13 and len(list(out.glob("*.qgraph"))) == 12
