"""Reports of conversions count the operators of the file that was written, those that its writer added too."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import pytest

from qconvert import convert
from qconvert.cli.closing import closing
from qconvert.errors import UnsupportedError
from qconvert.formats.tflite.contents import contents

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two convolutions, trained with quantization, converted by PyTorch and traced: its first rounding is PyTorch's own."""
    quantization = torch.ao.quantization
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("trained") / "qat.pt"
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3), torch.nn.ReLU()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = quantization.QuantWrapper(torch.nn.Sequential(*layers)).train()
        network = quantization.fuse_modules_qat(network, [["module.0", "module.1"], ["module.2", "module.3"]])
        network.qconfig = quantization.get_default_qat_qconfig("x86")
        network = quantization.prepare_qat(network)
        data = torch.randn(4, 3, 12, 12)
        network(data)
        network = quantization.convert(network.eval())
        torch.jit.trace(network, data[:1]).save(str(path))
    return path


@pytest.mark.torch
@pytest.mark.cross_section
def test_operators_that_the_writer_adds_are_counted(trained: Path, tmp_path: Path) -> None:
    result = tmp_path / "a.tflite"
    report = convert(trained, result)
    written = Counter(contents(result)["operators"])
    assert sum(report.operators.values()) == sum(written.values()) > 10
    floats = {"ADD": "Add", "MUL": "Mul", "SUB": "Sub"}
    assert dict(report.on_floats) == {kind: written[name] for name, kind in floats.items()}
    assert f"Mixed: {sum(report.on_floats.values())} of {sum(written.values())} operators run on floats" in "".join(closing(report))


@pytest.mark.formats
def test_operators_on_floats_that_the_writer_adds_are_forbidden(trained: Path, tmp_path: Path) -> None:
    result = tmp_path / "a.tflite"
    with pytest.raises(UnsupportedError, match=r"real values in what is written: \d Add, \d Mul, \d Sub"):
        convert(trained, result, partial="forbid")
    assert not result.exists()
    report = convert(trained, result, partial="forbid", numerics="fast")
    assert not report.on_floats and {"ADD", "MUL", "SUB"}.isdisjoint(contents(result)["operators"])
