"""The command line: what each command prints and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import typer

from qconvert import __version__
from qconvert.cli.help import GROUPS
from qconvert.cli.startup import keep_called
from qconvert.errors import MissingPackageError
from qconvert.runtimes.onnx_rewrites import has_vnni

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"


def run(*arguments: str | Path, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    if not python:
        return forked.run(arguments)
    command = [sys.executable, *python, "-m", "qconvert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Return the modules that `-X importtime` lists."""
    return {line.split("|")[-1].strip() for line in done.stderr.splitlines()}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("result") / "model.onnx"
    done = run("tflite2onnx", MODEL, path)
    assert done.returncode == 0, done.stderr
    assert "none was changed" in done.stdout
    assert "runs: 21 of 26 operators on integers" in done.stdout  # the others are a Softmax
    return path


@pytest.mark.skipif(not has_vnni(), reason="the hint is for CPUs with VNNI")
def test_what_is_faster_on_this_cpu_is_said_where_it_is(tmp_path: Path) -> None:
    said = "faster on this CPU, which has VNNI, and as exact (most convolutions 2 to 3 times as fast"
    assert said in run("tflite2onnx", MODEL, tmp_path / "a.onnx").stdout
    for options in (["-O", "weights_by_cpu=true"], ["--target", "ort-x86-vnni"]):
        done = run("tflite2onnx", MODEL, tmp_path / "a.onnx", "-f", *options)
        assert done.returncode == 0 and said not in done.stdout


def test_help_lists_the_commands_without_importing_numpy() -> None:
    done = run("--help", python=("-X", "importtime"))
    assert done.returncode == 0
    listed = [name for names in GROUPS.values() for name in names]
    places = [done.stdout.index(f"\n  {name} ") for name in listed]
    assert places == sorted(places) and "tflite2qgraph" not in done.stdout
    assert imported(done).isdisjoint({"numpy", "onnx", "onnxruntime", "ai_edge_litert", "rich.console"})


def test_a_conversion_imports_no_runtime_and_no_masked_arrays(tmp_path: Path) -> None:
    """The first np.unique() of a process imports numpy.ma, which takes a fiftieth of a small conversion."""
    done = run("convert", MODEL, tmp_path / "model.onnx", python=("-X", "importtime"))
    assert done.returncode == 0
    assert imported(done).isdisjoint({"numpy.ma", "onnxruntime", "ai_edge_litert", "torch", "html", "fractions"})


def test_a_small_conversion_collects_no_garbage_from_its_first_import_on(tmp_path: Path) -> None:
    code = "import atexit, gc; from qconvert.__main__ import main; gc.collect(); before = gc.get_stats()[0]['collections']\n"
    code += "atexit.register(lambda: print('collected', gc.get_stats()[0]['collections'] - before)); main()"
    done = subprocess.run([sys.executable, "-c", code, "convert", MODEL, tmp_path / "model.onnx", "-q"], capture_output=True, check=False)
    assert done.stdout.split() == [b"collected", b"0"]


@pytest.mark.parametrize(("tool", "table"), [("cProfile -m", "function calls"), ("trace --listfuncs --module", "functions called:")])
def test_a_profiler_prints_what_it_saw(tool: str, table: str) -> None:
    """The process ended before that."""
    done = subprocess.run([sys.executable, "-m", *tool.split(), "qconvert", "--version"], capture_output=True, text=True, check=True)
    assert table in done.stdout


@pytest.mark.parametrize("words", ["check a b", "-- check a b", "chekc a b", "--help check", ""])
def test_the_called_command_alone_is_made_and_every_one_where_none_is(words: str) -> None:
    """Typer makes the options of each command that the program holds; what is called otherwise is answered with what was meant."""
    program = typer.Typer()
    for name in ("convert", "check"):
        program.command(name)(lambda: None)
    program.add_typer(typer.Typer(), name="plugin")
    keep_called(program, words.split())
    found = [command.name for command in program.registered_commands], len(program.registered_groups)
    assert found == ((["check"], 0) if "check a b" in words else (["convert", "check"], 1))


def test_a_file_in_the_place_of_a_command_is_answered_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(b"")
    for words, meant in ((["model.onnx"], "convert"), ([], "inspect")):
        done = run(tmp_path / "model.tflite", *words)
        assert done.returncode == 2
        assert " ".join((f"Did you mean: qconvert {meant} {tmp_path / 'model.tflite'}", *words)) in " ".join(done.stderr.split())


def test_scales_are_written_with_the_options_of_their_format() -> None:
    shown = {name: run("extract-scales", MODEL, f"scales.{name}", "--help").stdout for name in ("json", "cache")}
    assert "--trt-version" not in shown["json"] and "--trt-version" in shown["cache"] and "--pipeline" not in shown["cache"]
    assert "--encodings-options" not in run("apply", "--help-all").stdout


@pytest.mark.parametrize(("command", "flag"), [("audit --run", "--target ort-x86")])
def test_what_a_command_cannot_do_without_comes_with_an_example(command: str, flag: str) -> None:
    done = run(*command.split(), Path(__file__).parent.parent / "fixtures" / "tiny_kws_dscnn_int8.tflite")
    assert done.returncode == 2 and flag in done.stderr and "Traceback" not in done.stderr


def test_an_error_in_a_report_is_one_line() -> None:
    said = {"file": "a.onnx", "remedy": "Install it:\npip install x", "rule": "package-missing"}
    error = MissingPackageError("the package x is not installed", **said)
    assert error.sentence == "a.onnx: the package x is not installed. Install it. pip install x"


def test_version() -> None:
    assert run("--version").stdout.strip() == f"qconvert {__version__}"


def test_quiet_verbose_and_json(tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    assert run("convert", MODEL, out, "--quiet").stdout == ""
    assert "integer kernel" in run("convert", MODEL, out, "-f", "--verbose").stdout
    report = json.loads(run("convert", MODEL, out, "-f", "--json").stdout)
    assert report["target"] == "ort-x86"
    assert report["operators"]["Conv"] == 9
    assert [change["by"] for change in report["changes"]] == ["match_rounding", "assign_layout", "store_activations", "guard_saturation"]


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    dry, wet = run("convert", MODEL, out, "--dry-run"), run("convert", MODEL, out)
    assert dry.returncode == 0 and dry.stdout.startswith(f"{MODEL} -> nothing for ort-x86\n"), dry.stderr
    said, done = (text.stdout.splitlines()[1:] for text in (dry, wet))
    assert said == done[:-1] and done[-1].startswith("next: qconvert check ")
    assert run("convert", MODEL, out, "--dry-run").returncode == 0  # though a file is there
    refused = run(
        "convert", MODEL, tmp_path / "none" / "model.tflite", "--target", "tflite-micro", "--dry-run", "--io", "float", "-O", "io=integer"
    )
    assert refused.returncode == 2 and "the option io is given twice" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_check_exit_codes(result: Path, tmp_path: Path) -> None:
    report = json.loads(run("check", MODEL, result, "--per-op", "--samples", "1", "--json").stdout)
    assert report["passed"]
    assert report["outputs"][0]["equal"] == 1
    other = tmp_path / "other.onnx"
    run("tflite2onnx", FIXTURES / "aww_int8.tflite", other)  # the same network, trained another time
    done = run("check", MODEL, other, "--samples", "1", "--max-lsb", "0")
    assert done.returncode == 1
    assert "differs by 140 LSB" in done.stdout
    assert run("check", MODEL, tmp_path / "none.onnx").returncode == 2


def test_check_takes_files_of_every_kind(result: Path, tmp_path: Path) -> None:
    import numpy as np

    values = np.random.default_rng(0).integers(-128, 128, (1, 49, 10, 1)).astype(np.int8)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "b.npz", input_1=values)
    values.tofile(tmp_path / "c.bin")
    report = json.loads(run("check", MODEL, result, "--data", tmp_path, "--samples", "9", "--json").stdout)
    assert report["runs"] == 3
    wrong = tmp_path / "wrong.npy"
    np.save(wrong, values[:, :7])
    done = run("check", MODEL, result, "--data", wrong)
    assert done.returncode == 2
    assert "the shape is (1, 7, 10, 1)" in done.stderr


@pytest.mark.parametrize("suffix", ["tflite", "onnx", "qgraph"])
def test_inspect(suffix: str, result: Path, tmp_path: Path) -> None:
    path = {"tflite": MODEL, "onnx": result, "qgraph": tmp_path / "model.qgraph"}[suffix]
    if suffix == "qgraph":
        run("convert", MODEL, path)
    document = json.loads(run("inspect", path, "--json").stdout)
    found = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert found["input_1"]["dtype"] == "int8"
    assert sum(op["kind"] == "Conv" for op in document["ops"]) == 9
    scale = next(iter(found["Identity"]["quantization"]["scale"])) if suffix != "onnx" else 1 / 256
    assert scale == 1 / 256
    table = " ".join(run("inspect", path).stdout.split())
    assert "Conv" in table
    assert f"{path.stat().st_size:,} bytes" in table


def test_diff_exit_codes(tmp_path: Path) -> None:
    run("convert", MODEL, tmp_path / "same.qgraph")
    equal = run("diff", MODEL, tmp_path / "same.qgraph")
    assert (equal.returncode, equal.stdout.strip()) == (0, "equal: nothing differs")
    other = run("diff", MODEL, FIXTURES / "aww_int8.tflite")
    assert other.returncode == 1
    assert "scale" in other.stdout


def test_formats_and_plugins() -> None:
    found = json.loads(run("formats", "--json").stdout)
    assert {item["name"] for item in found["formats"]} >= {"tflite", "onnx", "qgraph"}
    assert {item["name"] for item in found["targets"]} >= {"ort-x86", "ort-x86-vnni", "ort-arm", "generic"}
    assert "ort-x86" in run("formats").stdout
    assert [item["name"] for item in json.loads(run("plugins", "--json").stdout)["items"]][:4] == ["tflite", "onnx", "torch", "qgraph"]


def test_a_plugin_that_fails_is_named_and_skipped(tmp_path: Path) -> None:
    info = tmp_path / "broken_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qconvert]\nbroken = broken_plugin\n")
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('half installed')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['qconvert', 'plugins', '--json']"
    code += "; from qconvert.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    broken = json.loads(done.stdout)["items"][-1]
    assert broken["name"] == "broken"
    assert broken["origin"] == "broken_plugin (broken-plugin 1.0)"
    assert broken["problem"] == "RuntimeError: half installed"


def test_passes_are_listed() -> None:
    listed = {item["name"]: item for item in json.loads(run("passes", "--json").stdout)["items"]}
    assert listed["per_axis_to_per_tensor"]["exact"] is False and listed["signed_to_unsigned"]["exact"] is True
    printed = run("passes").stdout
    assert all(name in printed for name in listed) and {"fuse_pad", "remove_dead_code"} <= listed.keys()


def test_passes_by_hand_run_first_and_in_order(tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    report = json.loads(
        run(
            "tflite2onnx",
            MODEL,
            out,
            "--json",
            "--pass",
            "unsigned_to_signed",
            "--pass",
            "signed_to_unsigned",
            "--pass",
            "per_axis_to_per_tensor",
        ).stdout
    )
    names = list(dict.fromkeys(change["by"] for change in report["changes"]))
    assert names == ["signed_to_unsigned", "per_axis_to_per_tensor", "match_rounding", "assign_layout", "guard_saturation"]
    assert report["provenance"]["qconvert.scales"] == "some are new: see qconvert.changes"
    printed = run("convert", MODEL, out, "-f", "--pass", "per_axis_to_per_tensor").stdout
    assert "none was changed" not in printed and "SQNR" in printed


@pytest.mark.cross_section
def test_an_unknown_pass(tmp_path: Path) -> None:
    done = run("convert", MODEL, tmp_path / "model.onnx", "--pass", "signed_to_unsigned", "--pass", "nonsense")
    assert done.returncode == 2
    assert "there is no pass 'nonsense'" in done.stderr and "remove_dead_code" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_empty_name_of_a_second_result_is_refused(tmp_path: Path) -> None:
    """Such as of a variable of a shell that is not set: nothing would be written there, without a word."""
    done = run("extract-scales", MODEL, tmp_path / "scales.json", "--float", "")
    assert done.returncode == 2 and "has no suffix" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["new/", "there/"])
def test_a_name_of_a_folder_is_refused_where_the_format_writes_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    to_onnx = ("--to", "onnx")
    for words, file in (
        (("tflite2onnx", MODEL), "model.onnx"),
        (("tflite2onnx", MODEL, "--dry-run"), "model.onnx"),
        (("apply", MODEL, "scales.json", *to_onnx, "-o"), "model.onnx"),
        (("calibrate", MODEL, "--data", MODEL.parent, *to_onnx, "-o"), "model.onnx"),
        (("partition", MODEL, "--target", "tflite-micro", *to_onnx), "model.onnx"),
        (("extract-scales", MODEL, "--to", "encodings"), "scales.json"),
        (("extract-scales", MODEL, "--to", "mnn"), "scales.mnn"),
    ):
        done = run(*words, f"{tmp_path}/{name}")
        assert done.returncode == 2 and f"{tmp_path}/{name}{file}" in done.stderr, words
    for folder in (".", "./", ".."):
        assert run("tflite2onnx", MODEL, folder, "--dry-run").returncode == 2
    assert [item.name for item in tmp_path.iterdir()] == ["there"] and not [*(tmp_path / "there").iterdir()]
    made = run("tflite2mnn", MODEL, f"{tmp_path}/{name}", "--no-mnn", "--json")
    assert json.loads(made.stdout)["result"] == str(tmp_path / name)  # without the /, as convert() says it
    assert sorted(item.name for item in (tmp_path / name).iterdir()) == ["model.json", "model.onnx"]
