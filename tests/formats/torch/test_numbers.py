"""What TorchScript computes on numbers and texts, as PyTorch does: the expected values are those of torch 2.13."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.torchscript_models import computed

pytestmark = pytest.mark.formats

X = np.zeros((7, 2), np.float32)
_HEAD = "n = torch.size(x, 0); f = torch.mul(n, 0.5)"


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("torch.round(f)", 4.0),
        ("torch.round(torch.neg(torch.sub(f, 1)))", -2.0),
        ("torch.round(2.5)", 2.0),
        ("torch.pow(n, 2)", 49.0),
        ("torch.pow(2, torch.neg(n))", 2.0**-7),
        ("torch.__and__(n, 10)", 2.0),
        ("torch.__or__(n, 8)", 15.0),
        ("torch.__xor__(n, 2)", 5.0),
        ("torch.__lshift__(n, 2)", 28.0),
        ("torch.__rshift__(n, 1)", 3.0),
        ("torch.floordiv(torch.neg(n), 2)", -4.0),
        ("torch.remainder(torch.neg(f), 0.75)", 0.25),
        ("torch.fmod(torch.neg(f), 0.75)", -0.5),
        ("torch.__range_length(7, -1, -3)", 3.0),
        ("torch.__derive_index(2, 7, -3)", 1.0),
        ("torch.copysign(f, -1.)", -3.5),
        ("torch.gcd(n, 21)", 7.0),
        ("torch.ceil(f)", 4.0),
        ("ops.prim.abs(torch.neg(f))", 3.5),
        ("torch.find('abc', 'c')", 2.0),
        ("torch.len(torch.split('a,b,c', ','))", 3.0),
        ("torch.len(torch.replace('abab', 'b', 'cc'))", 6.0),
    ],
)
def test_numbers_are_those_of_pytorch(tmp_path: Path, expression: str, wanted: float) -> None:
    (found,) = computed(tmp_path / "a.pt", f"{_HEAD}; return torch.add(x, float({expression}))", X)
    assert np.allclose(found, np.float32(wanted))


def test_a_quotient_and_what_is_left(tmp_path: Path) -> None:
    (found,) = computed(
        tmp_path / "a.pt", f"{_HEAD}; a, b = torch.divmod(torch.neg(n), 3); return torch.add(x, torch.add(torch.mul(a, 10), b))", X
    )
    assert (found == -30 + 2).all()


@pytest.mark.parametrize(
    ("made", "dtype"), [("torch.arange(0, 1, 0.25)", "float32"), ("torch.arange(3, 0, -1)", "int64"), ("torch.eye(2, 3)", "float32")]
)
def test_numbers_by_position_are_no_types(tmp_path: Path, made: str, dtype: str) -> None:
    (found,) = computed(tmp_path / "a.pt", f"return {made}", X)
    assert found.dtype == dtype


def test_a_power_of_whole_numbers_makes_real_ones(tmp_path: Path) -> None:
    (found,) = computed(tmp_path / "a.pt", f"{_HEAD}; return torch.mul(torch.zeros([2], dtype=4), torch.pow(n, 2))", X)
    assert found.dtype == np.float32


def test_numbers_that_are_known_only_at_run_time_keep_their_type_in_a_tensor(tmp_path: Path) -> None:
    (found,) = computed(tmp_path / "a.pt", "return torch.tensor([float(torch.sum(torch.add(x, 0.25))), 1])", X)
    assert found.dtype == np.float32 and np.allclose(found, [3.5, 1])
