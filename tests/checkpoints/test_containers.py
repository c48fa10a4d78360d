"""Containers of weights in blocks: what each writes it reads again, and what has no room in one is named with its share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.container import Container, LayerKind, Needs, Written
from qconvert.checkpoints.fitting import Misfit, dtype_of, fit_weight
from qconvert.checkpoints.nearest import find_nearest_weight, signal_to_noise
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.source import CONTAINERS
from qconvert.checkpoints.weight import E2M1, BlockWeight, columns_of_words, pack, to_row_major, unpack, word_count
from qconvert.formats.checkpoints import SUMMARIES

WRITTEN = [container for container in CONTAINERS if container.write is not None]
BY_GROUPS = Activations("float8e4m3fn", "group", 128)
BY_ONE_SCALE = Activations("float8e4m3fn", "tensor", is_dynamic=False, scale=0.25)


def activations_for(needs: Needs, seed: int) -> Activations | None:
    """How data are rounded, in a way that a container has room for."""
    possible = [how for how in (None, BY_GROUPS, BY_ONE_SCALE) if needs.has_activations(how)]
    return possible[seed % len(possible)]


def weight_for(container: Container, seed: int, bits: int = 0, rows: int = 32, inputs: int = 256) -> BlockWeight:
    """A random weight that a container has room for."""
    needs = container.needs
    assert needs is not None
    rng = np.random.default_rng(seed)
    bits = bits or needs.bits[seed % len(needs.bits)]
    block = needs.blocks[seed % len(needs.blocks)] if needs.blocks else (32, 64, 256)[seed % 3]
    block = block if needs.outputs else inputs
    shape = rows, inputs // block
    scale = (rng.uniform(0.001, 0.1, shape) * rng.choice([-1, 1], shape)).astype(np.float32)
    scale = scale if needs.outputs == 1 else np.repeat(scale[:1], rows, axis=0)
    codes = rng.integers(0, 2**bits, (rows, inputs), np.uint8)
    codes = codes if needs.table is None else np.where(np.isfinite(needs.table[codes]), codes, np.uint8(0))
    made = np.abs(scale).astype(dtype_of(needs.scales[0])) if needs.table is not None else scale.astype(dtype_of(needs.scales[0]))
    low, high = needs.zeros(bits) if needs.zeros is not None else (0, 0)
    return BlockWeight(
        pack(codes, bits),
        bits,
        inputs,
        made,
        zero=rng.integers(low, high + 1, shape).astype(np.int16) if needs.table is None and not needs.has_offsets else None,
        offset=rng.normal(size=shape).astype(made.dtype) if needs.has_offsets else None,
        table=needs.table,
        outer=np.array([[0.37]], np.float32) if needs.outer != "no" else None,
        outer_divides=needs.outer == "divides",
        groups=rng.permutation(np.arange(inputs) // block).astype(np.int32) if needs.has_groups else None,
        factors=rng.uniform(0.5, 2, inputs).astype(np.float32) if needs.has_factors else None,
        activations=activations_for(needs, seed),
    )


def read_again(container: Container, weight: BlockWeight) -> BlockWeight:
    assert container.write is not None
    parts = Parts("a.b", container.write(weight))
    reader = next(item for item in CONTAINERS if item.recognizes(parts))
    how = None if weight.activations is None else replace(weight.activations, scale=None, zero=0)
    kind = LayerKind(weight.bits, weight.block, weight.is_symmetric, weight.strategy, how)
    config = container.documents(Written({"a.b": kind}, [], weight.groups is not None))["config.json"]
    return reader.read(replace(parts, config=Config(config["quantization_config"])))


@pytest.mark.parametrize("container", WRITTEN, ids=lambda container: container.name)
@pytest.mark.parametrize("seed", range(6))
def test_what_a_container_writes_it_reads_again(container: Container, seed: int) -> None:
    weight = weight_for(container, seed)
    found = read_again(container, weight)
    assert (found.bits, found.inputs, found.block, found.scale.dtype) == (weight.bits, weight.inputs, weight.block, weight.scale.dtype)
    np.testing.assert_array_equal(found.codes, weight.codes)
    np.testing.assert_array_equal(found.scale.astype(np.float32), weight.scale.astype(np.float32))
    np.testing.assert_array_equal(found.exact_values(), weight.exact_values())
    assert found.activations == weight.activations
    assert container.needs is not None
    fitting = fit_weight(weight, container.needs)
    assert isinstance(fitting, BlockWeight)
    np.testing.assert_array_equal(fitting.scale.astype(np.float32), weight.scale.astype(np.float32))


def test_names_of_formats_are_those_of_containers_that_are_written() -> None:
    assert set(SUMMARIES) == {container.name for container in WRITTEN}
    assert len({container.name for container in CONTAINERS}) == len(CONTAINERS)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@given(st.integers(1, 70), st.integers(0, 2**31))
def test_streams_of_words(bits: int, count: int, seed: int) -> None:
    """Integer k of a row are the bits from bits * k on of one long number."""
    codes = np.random.default_rng(seed).integers(0, 2**bits, (3, count), np.uint8)
    words = pack(codes, bits)
    assert words.dtype == np.uint32 and words.shape == (3, word_count(count, bits))
    for row, numbers in zip(words.tolist(), codes.tolist(), strict=True):
        assert sum(word << (32 * place) for place, word in enumerate(row)) == sum(item << (bits * k) for k, item in enumerate(numbers))
    np.testing.assert_array_equal(unpack(words, bits, count), codes)


@pytest.mark.parametrize("is_row_major", [True, False])
@pytest.mark.parametrize("lies_in_rows", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(8, 1), (16, 3), (520, 2), (24, 300), (1032, 130)])
def test_words_of_rows_become_words_of_columns(rows: int, columns: int, lies_in_rows: bool, is_row_major: bool) -> None:
    numbers = np.random.default_rng(0).integers(0, 16, (rows, 8 * columns), np.uint8)
    words = pack(numbers, 4) if lies_in_rows else np.asfortranarray(pack(numbers, 4))
    turn = partial(columns_of_words, words, is_row_major=is_row_major)
    found = turn()
    assert found.flags.c_contiguous if is_row_major else found.flags.f_contiguous
    np.testing.assert_array_equal(found, pack(np.ascontiguousarray(numbers.T), 4))
    for order in ((0, 2, 4, 6, 1, 3, 5, 7), (0, 4, 1, 5, 2, 6, 3, 7), (0, 4, 2, 6, 1, 5, 3, 7)):
        mixed = numbers.reshape(-1, 8, 8 * columns)[:, order].reshape(rows, -1)
        np.testing.assert_array_equal(turn(rows=order), pack(np.ascontiguousarray(mixed.T), 4))
        mixed = numbers.reshape(rows, -1, 8)[:, :, order].reshape(rows, -1)
        np.testing.assert_array_equal(turn(columns=order), pack(np.ascontiguousarray(mixed.T), 4))
    np.testing.assert_array_equal(to_row_major(words.T), words.T)


def named(name: str) -> Container:
    return next(container for container in CONTAINERS if container.name == name)


def whole(zeros: Any, scale: Any = 0.5, bits: int = 4, **more: Any) -> BlockWeight:
    """A weight [8, 64] with two blocks in each row."""
    codes = np.random.default_rng(1).integers(0, 2**bits, (8, 64), np.uint8)
    scales = np.full((8, 2), scale, np.float32) if np.isscalar(scale) else np.asarray(scale, np.float32)
    zero = None if zeros is None else np.full((8, 2), zeros, np.int16) if np.isscalar(zeros) else np.asarray(zeros, np.int16)
    return BlockWeight(pack(codes, bits), bits, 64, scales, zero, **more)


def fit(weight: BlockWeight, name: str) -> BlockWeight | Misfit:
    needs = named(name).needs
    assert needs is not None
    return fit_weight(weight, needs)


def share(weight: BlockWeight, name: str, reason: str) -> float:
    found = fit(weight, name)
    assert isinstance(found, Misfit) and reason in found.reason
    return found.share


def some(count: int, value: float, rest: float) -> Any:
    """[8, 2] with `value` in the first `count` places."""
    return np.where(np.arange(16).reshape(8, 2) < count, value, rest)


def test_what_has_no_room_is_named_with_its_share() -> None:
    third = np.float32(1) / np.float32(3)
    assert share(whole(8, some(4, float(third), 0.5)), "gptq", "scales of float32 are not all float16") == 4 / 16
    assert share(whole(some(3, 0, 8)), "awq-modelopt", "zero points of 4 bits are not all 8") == 3 / 16
    assert share(whole(some(2, 0, 3)), "gptq", "zero points of 4 bits are not all 1 to 15") == 1 / 16  # the other has no 15
    assert isinstance(fit(whole(some(2, 0, 3)), "gptq-v2"), BlockWeight)
    offsets = some(5, 0.3, -1.5).astype(np.float32)
    assert share(whole(None, offset=offsets), "gptq", "no multiples of their scales") == 5 / 16
    assert share(whole(None, table=E2M1 / 3), "gptq", "the values of codes are others") == 1
    assert share(whole(8), "mxfp4", "the values of codes are others") == 1
    assert share(whole(8, bits=8), "awq", "integers have 8 bits, at most 4 have room") == 1
    assert share(whole(8, groups=np.arange(64, dtype=np.int32) % 2), "awq", "act-order") == 1
    assert share(whole(8, factors=np.ones(64, np.float32)), "awq", "pre_quant_scale") == 1
    assert (
        share(replace(whole(8), words=whole(8).words[:7], scale=whole(8).scale[:7], zero=np.full((7, 2), 8, np.int16)), "awq", "outputs")
        == 1
    )
    one_block = replace(whole(8), scale=np.full((8, 4), 0.5, np.float32), zero=np.full((8, 4), 8, np.int16))
    one_block.scale[0, 0] = 0.25
    assert share(one_block, "mlx", "blocks have 16 inputs") == 1


def test_zero_points_and_offsets_stand_for_each_other_where_that_is_exact() -> None:
    weight = whole(np.arange(16).reshape(8, 2))
    with_offset = fit(weight, "mlx")
    assert isinstance(with_offset, BlockWeight) and with_offset.offset is not None and with_offset.zero is None
    assert with_offset.offset.dtype == np.float32  # that of the scales is kept where there is a choice
    np.testing.assert_array_equal(with_offset.exact_values(), weight.exact_values())
    back = fit(with_offset, "gptq-v2")
    assert isinstance(back, BlockWeight) and back.scale.dtype == np.float16
    np.testing.assert_array_equal(back.zero, weight.zero)
    product = np.float32(0.1), 3  # three times a float16 of 11 bits needs 12: float32 holds it
    half = replace(whole(product[1]), scale=np.full((8, 2), product[0], np.float16))
    made = fit(half, "mlx")
    assert isinstance(made, BlockWeight) and made.scale.dtype == np.float32
    np.testing.assert_array_equal(made.exact_values(), half.exact_values())


def test_values_that_are_rounded_twice() -> None:
    """(q * SCB) * (1 / 127) of bitsandbytes: of a power of two one scale gives the same values as float32, of other scales it does not."""
    inverse = np.array([[1 / 127]], np.float32)
    weight = replace(whole(128, 0.25, bits=8), outer=inverse, outer_is_last=True)
    made = fit(weight, "compressed-tensors")
    assert isinstance(made, BlockWeight) and made.outer is None and made.scale.dtype == np.float32
    np.testing.assert_array_equal(made.values(), weight.values())
    assert signal_to_noise(weight, made) is None
    steps = weight.codes.astype(np.float32) - 128
    wrong = (steps * np.float32(0.3)) * inverse != steps * (np.float32(0.3) * inverse)
    weight = replace(weight, scale=np.full((8, 2), 0.3, np.float32))
    assert 0 < share(weight, "compressed-tensors", "rounded twice") == wrong.mean() < 1
    needs = named("compressed-tensors").needs
    assert needs is not None
    nearest = find_nearest_weight(weight, needs)
    assert isinstance(nearest, BlockWeight) and nearest.scale.dtype == np.float32
    np.testing.assert_array_equal(nearest.codes, weight.codes)
    assert 140 < (signal_to_noise(weight, nearest) or 0) < 170


def test_a_zero_point_of_0_is_moved_up_where_no_code_is_the_highest() -> None:
    weight = whole(0)
    assert isinstance(fit(weight, "gptq"), Misfit)
    lower = replace(weight, words=pack(np.minimum(weight.codes, 14), 4))
    made = fit(lower, "gptq")
    assert isinstance(made, BlockWeight) and made.zero is not None and (made.zero == 1).all()
    np.testing.assert_array_equal(made.exact_values(), lower.exact_values())


def test_each_block_gets_the_only_zero_point_of_a_container_where_its_codes_have_room() -> None:
    """Blocks with other zero points, in act-order too: q - zero stays the same."""
    zeros = np.arange(16).reshape(8, 2)
    orders = {"sorted": None, "act-order": np.arange(64, dtype=np.int32) % 2}
    needs = Needs((4,), zeros=lambda bits: (8, 8), scales=("float32",), has_groups=True)
    for order in orders.values():
        weight = whole(zeros, groups=order)
        blocks = weight.blocks_of_inputs
        steps = np.clip(weight.codes.astype(np.int16), zeros[:, blocks] - 8, zeros[:, blocks] + 7)
        weight = replace(weight, words=pack(steps.astype(np.uint8), 4))
        made = fit_weight(weight, needs)
        assert isinstance(made, BlockWeight) and made.zero is not None and (made.zero == 8).all()
        np.testing.assert_array_equal(made.exact_values(), weight.exact_values())
        codes = weight.codes.copy()
        codes[7, blocks == 1] = 0  # 15 below its zero point
        found = fit_weight(replace(weight, words=pack(codes, 4)), needs)
        assert isinstance(found, Misfit) and found.share == 1 / 16


def test_integers_become_wider_and_blocks_smaller() -> None:
    made = fit(whole(3, bits=3), "awq")
    assert isinstance(made, BlockWeight) and made.bits == 4
    np.testing.assert_array_equal(made.exact_values(), whole(3, bits=3).exact_values())
    rng = np.random.default_rng(0)
    long = BlockWeight(
        pack(rng.integers(0, 16, (8, 512), np.uint8), 4), 4, 512, rng.uniform(1, 2, (8, 2)).astype(np.float16), np.full((8, 2), 8, np.int16)
    )
    made = fit(long, "mlx")
    assert isinstance(made, BlockWeight) and made.block == 128
    np.testing.assert_array_equal(made.exact_values(), long.exact_values())


def test_two_levels_of_scales() -> None:
    """A power of two has an inverse; of 0.3 the products with the inverse are others in some blocks."""
    scale = np.arange(1, 17).reshape(8, 2).astype(dtype_of("float8_e4m3fn"))
    codes = np.random.default_rng(0).integers(0, 16, (8, 32), np.uint8)

    def weight(outer: float) -> BlockWeight:
        return BlockWeight(pack(codes, 4), 4, 32, scale, table=E2M1, outer=np.array([[outer]], np.float32), outer_divides=True)

    made = fit(weight(0.25), "nvfp4-modelopt")
    assert isinstance(made, BlockWeight) and made.outer is not None and float(made.outer[0, 0]) == 4
    np.testing.assert_array_equal(made.scales, weight(0.25).scales)
    inverse = np.float32(1) / np.float32(0.3)
    wrong = scale.astype(np.float32) / np.float32(0.3) != scale.astype(np.float32) * inverse
    assert 0 < wrong.mean() < 1
    assert share(weight(0.3), "nvfp4-modelopt", "no inverse in float32") == wrong.mean()
    scales = scale.astype(np.float32) / np.float32(0.3)
    wrong = scales.astype(scale.dtype).astype(np.float32) != scales
    assert 0.5 < share(weight(0.3), "mlx-nvfp4", "scales of float32 are not all float8_e4m3fn") == wrong.mean()
    made = fit(weight(1.0), "mlx-nvfp4")
    assert isinstance(made, BlockWeight) and made.outer is None


@pytest.mark.parametrize("name", [container.name for container in WRITTEN])
@pytest.mark.parametrize("source", [container.name for container in WRITTEN])
def test_the_nearest_weight_is_near(source: str, name: str) -> None:
    """A normal weight of 4 bits or more loses no more than 4 bits cost, about 17 dB; one that has room loses nothing."""
    needs = named(name).needs
    assert needs is not None
    rng = np.random.default_rng(3)
    real = rng.normal(size=(32, 256)).astype(np.float32)
    plain = BlockWeight(
        pack(np.clip(np.rint(real * 30) + 128, 0, 255).astype(np.uint8), 8),
        8,
        256,
        np.full((32, 2), 1 / 30, np.float32),
        np.full((32, 2), 128, np.int16),
    )
    first = named(source).needs
    assert first is not None
    weight = find_nearest_weight(replace(plain, activations=activations_for(first, 1)), first)
    assert isinstance(weight, BlockWeight)
    made = find_nearest_weight(weight, needs)
    if not needs.has_activations(weight.activations) and not needs.has_activations(None):
        assert isinstance(made, Misfit) and ("rounded to" in made.reason or "would be rounded" in made.reason)
        return
    assert isinstance(made, BlockWeight) and isinstance(fit_weight(made, needs), BlockWeight)
    assert made.activations == (weight.activations if needs.has_activations(weight.activations) else None)
    found = signal_to_noise(weight, made)
    assert found is None or found > 15
    if isinstance(fit_weight(weight, needs), BlockWeight):
        assert found is None


def test_offsets_next_to_zero_points() -> None:
    """scale * (q - 8) + zero of torchao's Int4Tensor: a zero point where zero is a multiple of the scale, always an offset of float32."""
    whole_zeros = np.arange(-7, 9).reshape(8, 2)
    weight = replace(whole(8, 0.25), offset=(whole_zeros * 0.25).astype(np.float32))
    made = fit(weight, "gptq-v2")
    assert isinstance(made, BlockWeight) and made.offset is None and made.zero is not None
    np.testing.assert_array_equal(made.zero, 8 - whole_zeros)
    np.testing.assert_array_equal(made.exact_values(), weight.exact_values())
    other = replace(weight, offset=some(5, 0.125, 0.5).astype(np.float32))
    assert share(other, "gptq-v2", "no multiples of their scales") == 5 / 16
    made = fit(other, "mlx")
    assert isinstance(made, BlockWeight) and made.zero is None
    np.testing.assert_array_equal(made.exact_values(), other.exact_values())
    needs = named("gptq").needs
    assert needs is not None
    nearest = find_nearest_weight(other, needs)
    assert isinstance(nearest, BlockWeight) and (signal_to_noise(other, nearest) or 0) > 20
