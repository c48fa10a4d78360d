"""Checkpoints as checkpoints of other tools: real ones, by the formulas of each tool, and what goes with them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_formulas import tensors_of, weights_of
from forked import run as run_program
from refusals import refused

import qconvert
from qconvert import convert
from qconvert.checkpoints.source import CheckpointSource
from qconvert.conversion.report import ConversionReport
from qconvert.errors import FileAccessError, InvalidModelError, OptionError, UnsupportedError
from qconvert.files import whole_folder
from qconvert.formats.checkpoints import SUMMARIES

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures" / "blocks"
_INTEGERS = ("gptq", "gptq-v2", "awq", "compressed-tensors", "compressed-tensors-int8", "mlx")
_SMALL = (*_INTEGERS, "compressed-tensors-fp8")  # FP8 has integers of 4 bits
_FP8 = ("compressed-tensors-fp8", "fp8-modelopt")
#: Checkpoint -> what it becomes with every integer and scale.
EXACT = {
    "ar_auto_gptq_W4A16_asym": _SMALL,
    "gm_v2_asym": _SMALL,
    "ar_auto_awq_W4A16_asym": _SMALL,
    "ct_W4A16": (*_SMALL, "awq-modelopt"),
    "ct_W4A16_ASYM": _SMALL,
    "gm_desc4": ("gptq", "gptq-v2"),
    # FP8 has the values of FP4, and integers with half the scale are twice them
    "ct_NVFP4A16": ("nvfp4", "compressed-tensors-fp8", "compressed-tensors", "compressed-tensors-int8"),
    "ct_MXFP4A16": (  # powers of two that E4M3 has
        *("mxfp4", "mlx-mxfp4", "nvfp4", "nvfp4-modelopt", "mlx-nvfp4"),
        *("compressed-tensors-fp8", "mxfp8", "mlx-mxfp8"),
        *("gptq", "gptq-v2", "compressed-tensors", "compressed-tensors-int8", "mlx"),
    ),
    "ct_FP8": _FP8,
    "ct_FP8_BLOCK": ("compressed-tensors-fp8", "fp8"),
    "hf_fp8": ("compressed-tensors-fp8", "fp8"),
    "ct_MXFP8": ("compressed-tensors-fp8", "mxfp8"),
    "ct_W8A8": ("compressed-tensors", "compressed-tensors-int8"),
    "ct_W4AFP8": ("compressed-tensors", "compressed-tensors-int8", "compressed-tensors-fp8"),
    "mo_FP8": _FP8,
    "mo_W8A16": ("compressed-tensors", "compressed-tensors-int8", "mlx"),  # scales of float32
    "quark_fp8": _FP8,
    "mo_INT4_AWQ": ("awq-modelopt",),
    "mlx4": ("mlx",),
    "bnb_nf4_plain": (),
    "bnb_int8": (),  # values are rounded twice
    "ao_int8": ("gptq", "gptq-v2", "compressed-tensors", "compressed-tensors-int8", "mlx"),
    "ao_intx4": _SMALL,
    "ao_int4": ("mlx",),  # zero points are floats, here not whole
    "ao_float8": ("compressed-tensors-fp8",),
    "quark_int4": ("compressed-tensors", "compressed-tensors-int8", "compressed-tensors-fp8", "awq-modelopt", "mlx"),  # scales of float32
    "quark_uint4": ("compressed-tensors", "compressed-tensors-int8", "compressed-tensors-fp8"),
}


def test_every_checkpoint_is_in_the_table() -> None:
    assert set(EXACT) == {folder.name for folder in FIXTURES.iterdir() if folder.is_dir()}


@pytest.mark.parametrize("result", SUMMARIES)
@pytest.mark.parametrize("source", EXACT)
def test_pairs(source: str, result: str, tmp_path: Path) -> None:
    """Exact, or refused with nothing left behind; then the nearest weights, which are near."""
    wanted = weights_of(FIXTURES / source)
    if result in EXACT[source]:
        report = convert(FIXTURES / source, tmp_path / "out", result_format=result)
        assert report.kept_all and report.kept["integers in them"] == sum(item.size for item in wanted.values())
        found = weights_of(tmp_path / "out")
        assert found.keys() == wanted.keys()
        for layer, weight in wanted.items():
            np.testing.assert_array_equal(found[layer], weight)
        assert qconvert.diff(FIXTURES / source, tmp_path / "out") == []
        return
    with refused(UnsupportedError, "not-lossless"):
        convert(FIXTURES / source, tmp_path / "out", result_format=result)
    assert list(tmp_path.iterdir()) == []
    if result in ("fp8", "fp8-modelopt"):  # which round data in one way alone
        with refused(UnsupportedError, "not-lossless"):
            convert(FIXTURES / source, tmp_path / "out", result_format=result, requantize=True)
        return
    report = convert(FIXTURES / source, tmp_path / "out", result_format=result, requantize=True)
    assert not report.kept_all and all((cost.sqnr_db or 99) > 12 for change in report.changes for cost in change.costs)
    found = weights_of(tmp_path / "out")
    for layer, weight in wanted.items():
        error = np.square(found[layer] - weight).sum() / np.square(weight).sum()
        assert 0 <= error < 10**-1.2
    lines = qconvert.diff(FIXTURES / source, tmp_path / "out")
    assert 0 < len(lines) <= len(wanted) and all("weights (" in line or "data are rounded to" in line for line in lines)


@pytest.mark.parametrize(
    ("source", "between", "back"),
    [
        *(
            ("ct_MXFP4A16", between, "mxfp4")
            for between in ("gptq-v2", "nvfp4", "compressed-tensors-fp8", "mxfp8", "compressed-tensors-int8")
        ),
        ("ct_NVFP4A16", "compressed-tensors", "compressed-tensors-fp8"),
        *(("ct_W4A16", between, "awq") for between in ("compressed-tensors-int8", "compressed-tensors-fp8")),
    ],
)
def test_the_way_back_is_exact(source: str, between: str, back: str, tmp_path: Path) -> None:
    """Integers and blocks become as few bits and as large as they were."""
    convert(FIXTURES / source, tmp_path / "between", result_format=between)
    convert(tmp_path / "between", tmp_path / "back", result_format=back)
    assert qconvert.diff(FIXTURES / source, tmp_path / "back") == []


def sharded(path: Path, name: str = "gm_v2_asym") -> Path:
    """A checkpoint in two files, with a norm, an output layer in floats, a tokenizer and other files next to it."""
    folder = path / "source"
    shutil.copytree(FIXTURES / name, folder)
    tensors = {**tensors_of(folder), "model.norm.weight": np.arange(256, dtype=np.float16)}
    tensors["lm_head.weight"] = np.ones((8, 256), np.float16)
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "pytorch_model.bin").write_bytes(b"not carried")
    places = {key: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, key in enumerate(tensors)}
    for file in sorted(set(places.values())):
        write(folder / file, {key: value for key, value in tensors.items() if places[key] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def write(path: Path, tensors: dict[str, Any]) -> None:
    names = {np.dtype(np.float16): "F16", np.dtype(np.int32): "I32"}
    head, data = {}, b""
    for key, value in tensors.items():
        head[key] = {"dtype": names[value.dtype], "shape": list(value.shape), "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def state(folder: Path, **more: Any) -> None:
    """Change what config.json states of the quantization."""
    model = json.loads((folder / "config.json").read_text())
    model["quantization_config"].update(more)
    (folder / "config.json").write_text(json.dumps(model))


def test_a_checkpoint_in_several_files_and_what_goes_with_it(tmp_path: Path) -> None:
    """Tensors of one layer stand in both files: it is written once, in the file that has the first of them."""
    from safetensors.numpy import load_file

    source = sharded(tmp_path)
    before = weights_of(source)
    steps: list[tuple[str, int, int]] = []
    convert(source, tmp_path / "out", result_format="awq", progress=lambda *step: steps.append(step))
    assert steps == [("layers", 1, 2), ("layers", 2, 2)]
    names = {item.name for item in (tmp_path / "out").iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} < names and "pytorch_model.bin" not in names
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    read: dict[str, Any] = {}
    for file in sorted(set(index["weight_map"].values())):
        loaded = load_file(tmp_path / "out" / file)
        assert all(index["weight_map"][key] == file for key in loaded)
        read.update(loaded)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in read.values())
    np.testing.assert_array_equal(read["model.norm.weight"], np.arange(256, dtype=np.float16))
    assert all(np.array_equal(weights_of(tmp_path / "out")[layer], weight) for layer, weight in before.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    stated = config["quantization_config"]
    assert (stated["quant_method"], stated["bits"], stated["group_size"], stated["modules_to_not_convert"]) == ("awq", 4, 32, ["lm_head"])
    original = json.loads((source / "config.json").read_text())
    assert {key: value for key, value in config.items() if key != "quantization_config"} == {
        key: value for key, value in original.items() if key != "quantization_config"
    }


def test_a_result_that_is_there(tmp_path: Path) -> None:
    source = FIXTURES / "gm_v2_asym"
    convert(source, tmp_path / "out", result_format="awq")
    with refused(FileAccessError, "exists"):
        convert(source, tmp_path / "out", result_format="gptq")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "model-00001-of-00002.safetensors").write_bytes(b"of an earlier result")
    convert(source, tmp_path / "out", result_format="gptq", force=True)
    assert {item.name for item in (tmp_path / "out").iterdir()} == {"config.json", "quantize_config.json", "model.safetensors", "notes.txt"}
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert json.loads((tmp_path / "out" / "quantize_config.json").read_text()) == stated
    convert(FIXTURES / "ct_W4A16", tmp_path / "out", result_format="awq-modelopt", force=True)
    assert {item.name for item in (tmp_path / "out").iterdir()} == {"config.json", "hf_quant_config.json", "model.safetensors", "notes.txt"}
    stated = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert (stated["quant_algo"], stated["group_size"]) == ("W4A16_AWQ", 128)


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    source = FIXTURES / "gm_v2_asym"
    for more in ({"passes": ["fold_constants"]}, {"graph": tmp_path / "float.onnx"}, {"target": "ort-x86"}):
        with refused(OptionError, "option-not-applicable"):
            convert(source, tmp_path / "out", result_format="awq", **more)  # type: ignore[arg-type]
    with refused(OptionError, "not-a-checkpoint"):
        convert(FIXTURES.parent / "tiny_kws_dscnn_int8.tflite", tmp_path / "out", result_format="awq")
    shutil.copytree(source, tmp_path / "own")
    with pytest.raises(OptionError, match="into the source's folder"):
        convert(tmp_path / "own", tmp_path / "own", result_format="awq", force=True)
    plain = tmp_path / "plain"
    plain.mkdir()
    write(plain / "model.safetensors", {"model.norm.weight": np.ones(4, np.float16)})
    with refused(UnsupportedError, "no-blocks"):
        convert(plain, tmp_path / "out", result_format="awq")
    assert {item.name for item in tmp_path.iterdir()} == {"own", "plain"}


def test_layers_with_other_blocks(tmp_path: Path) -> None:
    """GPTQ and compressed-tensors state them layer by layer; AWQ has one size for all."""
    folder = tmp_path / "source"
    shutil.copytree(FIXTURES / "gm_v2_asym", folder)
    tensors = tensors_of(folder)
    layer = "model.layers.0.self_attn.q_proj"
    for part in ("qzeros", "scales"):
        tensors[f"{layer}.{part}"] = np.ascontiguousarray(tensors[f"{layer}.{part}"][::2])
    tensors[f"{layer}.g_idx"] = (np.arange(256) // 64).astype(np.int32)
    write(folder / "model.safetensors", tensors)
    with refused(InvalidModelError, "config-contradicts"):
        convert(folder, tmp_path / "awq", result_format="awq")
    state(folder, dynamic={f"+:^{layer}$": {"group_size": 64}})
    with refused(UnsupportedError, "blocks-differ"):
        convert(folder, tmp_path / "awq", result_format="awq")
    convert(folder, tmp_path / "gptq", result_format="gptq-v2")
    stated = json.loads((tmp_path / "gptq" / "config.json").read_text())["quantization_config"]
    assert {stated["group_size"], *(item["group_size"] for item in stated["dynamic"].values())} == {32, 64}
    convert(tmp_path / "gptq", tmp_path / "ct", result_format="compressed-tensors")
    groups = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]["config_groups"].values()
    assert {(group["weights"]["group_size"], *group["targets"]) for group in groups} == {(64, layer), (32, "model.layers.0.mlp.down_proj")}
    assert qconvert.diff(folder, tmp_path / "ct") == []
    convert(folder, tmp_path / "mlx", result_format="mlx")
    stated = json.loads((tmp_path / "mlx" / "config.json").read_text())["quantization"]
    others = {name: item for name, item in stated.items() if isinstance(item, dict)}
    assert len(others) == 1 and {stated["group_size"], next(iter(others.values()))["group_size"]} == {32, 64}
    assert qconvert.diff(tmp_path / "mlx", folder) == []


def test_rows_that_are_one_block_each(tmp_path: Path) -> None:
    """One scale for each output, of layers with 256 and 512 inputs: one size for all, which tools write as -1 or as channels."""
    folder = tmp_path / "source"
    shutil.copytree(FIXTURES / "gm_v2_asym", folder)
    tensors = tensors_of(folder)
    for name in {key.rpartition(".")[0] for key in tensors}:
        for part in ("qzeros", "scales"):
            tensors[f"{name}.{part}"] = np.ascontiguousarray(tensors[f"{name}.{part}"][:1])
        tensors[f"{name}.g_idx"] = np.zeros_like(tensors[f"{name}.g_idx"])
    write(folder / "model.safetensors", tensors)
    state(folder, group_size=-1)
    stated = {}
    for result in ("gptq", "awq", "compressed-tensors"):
        convert(folder, tmp_path / result, result_format=result)
        stated[result] = json.loads((tmp_path / result / "config.json").read_text())["quantization_config"]
        assert qconvert.diff(folder, tmp_path / result) == []
    assert stated["gptq"]["group_size"] == stated["awq"]["group_size"] == -1 and "dynamic" not in stated["gptq"]
    (group,) = stated["compressed-tensors"]["config_groups"].values()
    assert (group["weights"]["strategy"], group["weights"]["group_size"], group["targets"]) == ("channel", None, ["Linear"])


def test_tables_of_embeddings_that_are_in_blocks_become_floats_of_the_same_values(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(FIXTURES / "mlx4", folder)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content.replace(b"model.layers.0.self_attn.q_proj", b"model.long_names__.embed_tokens"))
    report = convert(folder, tmp_path / "out", result_format="gptq", requantize=True)
    (name,) = tensors_of(tmp_path / "out")
    assert name == "model.long_names__.embed_tokens.weight" and any("became floats" in str(change) for change in report.changes)
    assert report.kept_all and qconvert.diff(folder, tmp_path / "out") == []


@pytest.mark.end_to_end
def test_on_the_command_line(tmp_path: Path) -> None:
    done = run_program(["convert", str(FIXTURES / "ar_auto_awq_W4A16_asym"), str(tmp_path / "out"), "--to", "compressed-tensors"])
    assert done.returncode == 0, done.stderr
    assert "kept: 2 layers in blocks, 196608 integers in them" in done.stdout and "none was changed" in done.stdout
    assert "wrote: a checkpoint, compressed-tensors" in done.stdout and "next: qconvert diff" in done.stdout
    done = run_program(["diff", str(FIXTURES / "ar_auto_awq_W4A16_asym"), str(tmp_path / "out")])
    assert (done.returncode, done.stdout.strip()) == (0, "equal: nothing differs")
    done = run_program(["convert", str(FIXTURES / "bnb_nf4_plain"), str(tmp_path / "nf4"), "--to", "awq", "--requantize", "--json"])
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["result_format"] == "awq"
    done = run_program(["diff", str(FIXTURES / "bnb_nf4_plain"), str(tmp_path / "nf4")])
    assert done.returncode == 1 and "layer model.layers.0.self_attn.q_proj" in done.stdout


@pytest.mark.end_to_end
def test_what_inspect_says_of_a_checkpoint() -> None:
    done = run_program(["inspect", FIXTURES / "ct_W4A16_ASYM", "--verbose"])
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "2 layers in blocks with 196,608 values" in words and "as compressed-tensors (pack-quantized) stores them" in words
    (row,) = (line.split() for line in done.stdout.splitlines() if "5..10" in line)
    assert row[-5:] == ["4", "128", "bfloat16", "5..10", "2"]
    document = json.loads(run_program(["inspect", FIXTURES / "gm_desc4", "--json"]).stdout)["checkpoint"]
    assert [layer["has_act_order"] for layer in document["layers"]] == [True, True] and document["layers"][0]["zero_points"] == [8, 8]
    failed = run_program(["inspect", FIXTURES.parent / "tiny_kws_dscnn_int8.tflite", "--from", "torch"])
    assert failed.returncode == 2


LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.2.mlp.down_proj")


def in_three_files(path: Path) -> Path:
    """A checkpoint in three files, a layer and a table of floats in each."""
    tensors = {key.rpartition(".")[2]: value for key, value in tensors_of(FIXTURES / "gm_v2_asym").items() if LAYERS[0] in key}
    folder = path / "source"
    folder.mkdir(parents=True)
    shutil.copyfile(FIXTURES / "gm_v2_asym" / "config.json", folder / "config.json")
    places = {}
    for place, layer in enumerate(LAYERS):
        named = {f"{layer}.{key}": np.roll(value, place) if key == "qweight" else value for key, value in tensors.items()}
        named[f"model.norm{place}.weight"] = np.arange(8, dtype=np.float16)
        places.update(dict.fromkeys(named, name := f"model-0000{place + 1}-of-00003.safetensors"))
        write(folder / name, named)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def interrupt_at(monkeypatch: pytest.MonkeyPatch, layer: str, act: Callable[[], Any]) -> list[str]:
    """Have `act` done where a layer is to be read; return the layers that were read before, as they come."""
    read, seen = CheckpointSource.weight, list[str]()

    def read_or_stop(source: CheckpointSource, name: str, **how: Any) -> Any:
        if name == layer:
            act()
        seen.append(name)
        return read(source, name, **how)

    monkeypatch.setattr(CheckpointSource, "weight", read_or_stop)
    return seen


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(error: BaseException) -> None:
    raise error


def contents(folder: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in folder.iterdir()}


@pytest.mark.end_to_end
@pytest.mark.parametrize("result", ["awq", "mlx-nvfp4"])
def test_a_killed_run_is_gone_on_with(result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, needs_new = in_three_files(tmp_path), result == "mlx-nvfp4"

    def run(name: str) -> ConversionReport:
        return convert(source, tmp_path / name, result_format=result, requantize=needs_new)

    wanted = run("whole")
    child = os.fork()
    if child == 0:
        interrupt_at(monkeypatch, LAYERS[2], die)
        run("out")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL and not (tmp_path / "out").exists()
    seen = interrupt_at(monkeypatch, "", die)
    report = run("out")
    assert seen == [LAYERS[2]]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole") and {*os.listdir(tmp_path)} == {"source", "out", "whole"}
    assert report.kept == wanted.kept and [change.costs for change in report.changes if change.costs] == [
        change.costs for change in wanted.changes if change.costs
    ]
    said = [change.text for change in report.changes]
    assert [text for text in said if "interrupted run" in text] == ["note: 2 of 3 files were there from an interrupted run"]
    assert len(said) == 1 + len(wanted.changes)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), UnsupportedError("no")])
def test_what_an_interrupted_run_leaves(error: BaseException, tmp_path: Path) -> None:
    """Finished files stay where the user or the disk ended it; an error of the conversion leaves nothing."""
    source = in_three_files(tmp_path)
    with pytest.MonkeyPatch.context() as patch, pytest.raises((KeyboardInterrupt, FileAccessError, UnsupportedError)) as caught:
        interrupt_at(patch, LAYERS[2], partial(stop, error))
        convert(source, tmp_path / "out", result_format="awq")
    kept = tmp_path / ".qconvert-out.kept"
    assert {*os.listdir(tmp_path)} == {"source", *([] if isinstance(error, UnsupportedError) else [kept.name])}
    if isinstance(error, OSError):
        assert str(kept) in str(caught.value.remedy)  # type: ignore[attr-defined]
    if not isinstance(error, UnsupportedError):
        assert [name for name in os.listdir(kept / "out") if "00003-of" in name] == []
    report = convert(source, tmp_path / "out", result_format="awq")
    assert any("interrupted run" in change.text for change in report.changes) is not isinstance(error, UnsupportedError)
    assert qconvert.diff(source, tmp_path / "out") == [] and {*os.listdir(tmp_path)} == {"source", "out"}


def rewrite_file(source: Path) -> None:
    file = source / "model-00002-of-00003.safetensors"
    os.utime(file, (1, 1))


def truncate_kept(source: Path) -> None:
    file = source.parent / ".qconvert-out.kept" / "out" / "model-00001-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def damage_record(source: Path) -> None:
    file = source.parent / ".qconvert-out.kept" / "out" / "model-00001-of-00003.safetensors.finished"
    file.write_bytes(file.read_bytes()[:-1])


def restart_system(source: Path) -> None:
    file = source.parent / ".qconvert-out.kept" / "out.made_of"
    file.write_text("another" + file.read_text())


CHANGES: list[tuple[Callable[[Path], None], str, int]] = [
    (lambda source: None, "awq", 2),
    (lambda source: None, "gptq", 0),
    (lambda source: state(source, more=1), "awq", 0),
    (rewrite_file, "awq", 0),
    (restart_system, "awq", 0),
    (truncate_kept, "awq", 1),
    (damage_record, "awq", 1),
]


@pytest.mark.parametrize(("change", "result", "count"), CHANGES)
def test_files_of_an_interrupted_run_that_are_taken_over(
    change: Callable[[Path], None], result: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = in_three_files(tmp_path)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, LAYERS[2], partial(stop, KeyboardInterrupt()))
        convert(source, tmp_path / "out", result_format="awq")
    change(source)
    seen = interrupt_at(monkeypatch, "", die)
    report = convert(source, tmp_path / "out", result_format=result)
    assert len(seen) == 3 - count and {*os.listdir(tmp_path)} == {"source", "out"}
    said = [change.text for change in report.changes if "interrupted run" in change.text]
    assert said == ([f"note: {count} of 3 files were there from an interrupted run"] if count else [])
    monkeypatch.undo()
    assert qconvert.diff(source, tmp_path / "out") == []


def test_two_runs_at_once_for_one_result(tmp_path: Path) -> None:
    """The second one has a folder of its own."""
    place = tmp_path / "out"
    with whole_folder(place, [], made_of="a") as first:
        with pytest.raises(KeyboardInterrupt), whole_folder(place, [], made_of="a") as second:
            (second / "x").write_text("2")
            raise KeyboardInterrupt
        (first / "x").write_text("1")
    assert (place / "x").read_text() == "1" and os.listdir(tmp_path) == ["out"]
