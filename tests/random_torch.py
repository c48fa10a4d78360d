"""Random valid programs of PyTorch for tests: scripted, traced and exported, with control flow, numbers, lists and views.

A seed is a program. It grows line by line: each line is one of LINES with its blanks filled from what is there, and stays only if PyTorch
runs it and gives something finite and small. torch is imported by those who call this.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

FORMS = ("script", "trace", "export", "dynamic")
_LARGEST = 3000  # elements of a tensor
_BLANK = re.compile(r"\{(\w+)\}")

#: Lines of code. A line that is an expression becomes a new variable. Blanks are variables: f, g (real tensors of one shape), v (real
#: tensor of rank 4), w (of rank 3), m (of rank 2), n (tensor of integers), b (of truth values), s (a number known from sizes), r (a real
#: number), o (a list of whole numbers), q (a truth value); or numbers made up: k (small, whole), p (positive), d (an axis of f), x (real).
#: (% and %) are braces.
LINES: dict[str, tuple[str, ...]] = {
    "arithmetic": (
        "{f} + {g}", "{f} - {g}", "{f} * {g}", "{f} / ({g} * {g} + 1)", "{f} + {x}", "{f} * {k}", "{x} - {f}", "{k} / ({f} * {f} + 1)",
        "torch.add({f}, {g}, alpha={p})", "torch.sub({f}, {x}, alpha={p})", "torch.rsub({f}, {x})", "-{f}", "{f} ** 2", "abs({f})",
        "torch.div({f}, {p}, rounding_mode='floor')", "torch.div({f}, {p}, rounding_mode='trunc')", "{f} // {p}", "{f} % {p}",
        "torch.remainder({f}, -{p})", "torch.fmod({f}, {p})", "torch.addcmul({f}, {g}, {f}, value={x})", "torch.lerp({f}, {g}, 0.25)",
        "torch.maximum({f}, {g})", "torch.minimum({f}, {g})", "torch.clamp({f}, -0.5, {p})", "{f}.clamp(min={x})", "{f}.clamp_max({x})",
        "{f} + {s}", "{f} * {r}", "{f} - {n}", "{n} * {x}", "{n} + {k}", "{n} * {n}", "{n} // {p}", "{n} % {p}", "{n} / {p}", "-{n}",
        "torch.div({n}, {p}, rounding_mode='trunc')", "torch.div({n}, {p}, rounding_mode='floor')", "{n} - {b}.int()",
        "{n} + {n}.to(torch.int32)", "{n}.to(torch.int16) * {k}", "torch.floor_divide({n}, -{p})", "torch.pow({n}, 2)", "{n}.abs()",
        "{n}.float() / {s}", "{f} * {f}.shape[0]", "{n} & {k}", "{n} | {n}", "{n} ^ {k}", "~{n}", "{f}.square().sum()", "{n}.sum()",
        "{f} / {s}", "{n} / {s}", "{n} << 1", "{n} >> 1", "{k} ** torch.clamp({f}, 0, 1)", "{f}.double() + {f}", "{f}.half() + 1",
        "torch.round({f} * {p})", "torch.round({f}, decimals=1)", "torch.floor({f})", "torch.ceil({f})", "torch.trunc({f})", "{f}.sign()",
        "{f}.double() * {n}", "{n}.to(torch.uint8) + 1", "{b} * {f}", "{b}.to(torch.float32)", "{b} + {n}", "1.0 - {b}.float()",
    ),
    "functions": (
        "torch.relu({f})", "F.relu6({f})", "F.hardswish({f})", "F.hardsigmoid({f})", "F.leaky_relu({f}, 0.1)", "F.elu({f}, 0.5)",
        "F.gelu({f})", "F.silu({f})", "F.mish({f})", "F.softplus({f})", "F.hardtanh({f}, -1.5, 0.5)", "F.selu({f})", "F.celu({f}, 0.7)",
        "torch.sigmoid({f})", "torch.tanh({f})", "torch.exp(-{f} * {f})", "torch.log({f} * {f} + 1)", "torch.sqrt({f} * {f})",
        "torch.sin({f})", "torch.cos({f})", "torch.erf({f})", "torch.rsqrt({f} * {f} + 1)", "torch.atan({f})", "torch.log1p({f} * {f})",
        "F.logsigmoid({f})", "F.softmax({f}, dim={d})", "F.log_softmax({f}, {d})", "F.threshold({f}, 0.1, {x})", "F.hardshrink({f})",
        "F.softshrink({f}, 0.3)", "F.tanhshrink({f})", "F.softsign({f})", "F.glu(torch.cat([{f}, {g}], {d}), {d})", "F.softmin({f}, {d})",
        "F.normalize({f}, dim={d})", "F.dropout({f}, 0.5, False)", "torch.expm1({f}.clamp(-1, 1))", "torch.sinh({f}.clamp(-1, 1))",
        "torch.atan2({f}, {g})", "F.gelu({f}, approximate='tanh')", "F.prelu({f}, torch.full([1], 0.2))", "torch.nan_to_num({f})",
        "torch.logit(torch.sigmoid({f}))", "torch.reciprocal({f} * {f} + 1)", "torch.hypot({f}, {g})", "torch.sgn({f})", "torch.frac({f})",
        "torch.copysign({f}, {g})", "F.relu({f}, inplace=False)", "torch.where({f} > 0, {f}, {g})", "torch.heaviside({f}, {g})",
        "torch.logaddexp({f}, {g})",
    ),
    "compare": (
        "{f} > {g}", "{f} <= {x}", "{n} == {k}", "{n} != {n}", "{b} & {b}", "{b} | {b}", "~{b}", "{b} ^ {b}",
        "torch.logical_and({b}, {b})", "torch.logical_not({n})", "{f}.ge({x})", "torch.where({b}, {f}, {x})", "torch.where({b}, {n}, {k})",
        "{f}.masked_fill({f} > {x}, {x})", "torch.isfinite({f})", "{b}.any()", "{b}.all({d})", "{b}.any({d}, keepdim=True)",
        "torch.eq({f}, {f})", "{b}.int()", "{b}.sum()", "torch.isclose({f}, {g})", "{b}.logical_or({b})",
        "torch.where({n} > {k}, {n}, {n} + 1)", "{n}.bool()", "{b}.sum({d})", "torch.masked_fill({n}, {n} < {k}, {k})",
        "torch.where({f} > {x}, {k}, {p})", "torch.where({f} > {x}, 1.0, {n})",
    ),
    "reduce": (
        "{f}.sum({d})", "{f}.mean({d}, keepdim=True)", "{f}.mean()", "{f}.amax({d})", "{f}.amin([{d}])", "{f}.max({d})[0]",
        "{f}.min({d})[1]", "torch.max({f})", "{f}.argmax({d})", "{f}.argmin({d}, keepdim=True)", "{f}.std({d})",
        "{f}.var({d}, unbiased=False)", "{f}.norm(2, {d})", "{f}.prod({d})", "torch.logsumexp({f}, {d})", "{f}.cumsum({d})",
        "{n}.sum({d})", "{n}.max({d})[0]", "{n}.argmax({d})", "{f}.norm()", "{f}.sum([{d}], keepdim=True)", "torch.var_mean({f}, {d})[0]",
        "torch.sort({f}, {d})[0]", "torch.sort({f}, {d}, descending=True)[1]", "torch.topk({f}, 1, {d})[0]",
        "torch.mean({f}, dim=({d}, ))", "{f}.argmax()", "{n}.prod({d})", "{n}.cumsum({d})", "torch.median({f})",
        "torch.linalg.norm({f}, dim={d})", "{f}.abs().sum(dim={d}, keepdim=True)", "torch.kthvalue({f}, 1, {d})[0]",
        "{f}.sum(dtype=torch.float64)", "{n}.float().mean({d})", "torch.aminmax({f}, dim={d})[0]", "torch.cumprod({f}, {d})",
        "torch.count_nonzero({f}, {d})",
    ),
    "shapes": (
        "{f}.reshape(-1)", "{f}.flatten({d})", "{f}.view({f}.size(0), -1)", "{f}.unsqueeze({d})", "{f}.squeeze()", "{f}.squeeze({d})",
        "{f}.transpose({d}, {d})", "{v}.permute(0, 2, 3, 1)", "{w}.permute(2, 0, 1)", "{m}.t()", "{f}.contiguous()", "{f}.expand_as({g})",
        "{f}.unsqueeze(0).expand([2] + list({f}.shape))", "{v}.flatten(2).transpose(1, 2)", "{f}.reshape({o})", "{f}.view_as({g})",
        "{f}.swapaxes({d}, {d})", "{f}.repeat_interleave(2, {d})", "{m}.repeat(2, 1)", "{m}.repeat(1, 1, 2)", "{f}.roll(1, {d})",
        "{f}.flip([{d}])", "{f}.movedim({d}, {d})", "{v}.reshape({v}.shape[0], {v}.shape[1] * {v}.shape[2], -1)",
        "{f}.view(-1, {f}.size(-1))", "{w}.reshape({w}.size(0), {w}.size(1), 1, -1)", "{f}.unflatten({d}, [-1, 1])",
        "torch.tile({m}, (2, 1))", "{n}.reshape(-1)", "{n}.unsqueeze({d})", "{n}.flatten()", "{b}.reshape(-1)", "{f}.view({o})",
        "torch.reshape({f}, {f}.shape[::-1])", "torch.reshape({f}, [-1, {f}.shape[{d}]])", "torch.atleast_2d({f})", "{f}.diagonal()",
        "torch.diag_embed({m})", "torch.ravel({f})", "{f}.expand([{k}, -1, -1])", "{f}.mT", "{f}.T",
    ),
    "slices": (
        "{f}[0]", "{f}[:, -1]", "{f}[..., 1:]", "{f}[:, ::2]", "{f}[:, :-1]", "{f}[None]", "{f}[..., None]", "{v}[:, :, 1:, :-1]",
        "{f}.select({d}, -1)", "{f}.narrow({d}, 0, 1)", "{f}[:, [0, -1]]", "{f}[{f} > {x}].sum()", "{f}[:1, ..., -2:]",
        "torch.cat([{f}, {g}], {d})", "torch.stack([{f}, {g}], {d})", "torch.cat([{f}[:, :1], {f}], 1)",
        "torch.index_select({f}, {d}, torch.tensor([0, 0]))", "torch.gather({f}, {d}, {f}.argmax({d}, keepdim=True))",
        "{f}[:, torch.tensor([0])]", "{f}[{k}:]", "{f}[:{s}]", "{f}[..., {s} // 2:]", "{n}[..., :1]", "{n}[0]",
        "torch.cat([{n}, {n}], {d})", "{f}[-1:, ...]", "torch.hstack([{f}, {g}])", "{v}[:, :, ::2, 1::2]", "{f}[(slice(None), 0)]",
        "torch.stack([{f}, {g}]).sum(0)", "torch.tril({m})", "torch.triu({f}, 1)", "torch.cat([{f}, torch.zeros_like({f})], {d})",
        "{f}[torch.arange({f}.size(0))]", "torch.take_along_dim({f}, {f}.argsort({d}), {d})", "torch.unbind({f}, {d})[0]",
        "{f}.chunk(2, {d})[-1]", "{f}.split(1, {d})[0]", "torch.index_select({f}, {d}, torch.arange({f}.size({d})))",
        "{f}[:, {n}.clamp(0, 0)]", "{n}[:, 0] + 1", "{f}.masked_select({f} > {x}).sum()",
        "torch.index_add({f}, 0, torch.tensor([0]), {f}[:1])", "{f}.scatter({d}, {f}.argmax({d}, keepdim=True), {x})",
        "{f}.index_fill({d}, torch.tensor([0]), {x})", "torch.index_put({f}, [torch.tensor([0])], torch.tensor({x}))",
        "torch.slice_scatter({f}, {f}[:1] * 2, 0, 0, 1)", "torch.meshgrid(torch.arange(2), torch.arange(3), indexing='ij')[0]",
        "{f}.scatter_add({d}, {f}.argmax({d}, keepdim=True), {f})", "torch.tensor_split({f}, 2, {d})[0]",
        "torch.select_scatter({f}, {f}[0], 0, 0)", "torch.diff({f}, dim={d})", "torch.diff({f}, 2, 0, prepend={n}[:1])",
        "torch.diff({b}, append={b}[..., :1])",
    ),
    "spatial": (
        "F.max_pool2d({v}, 2)", "F.max_pool2d({v}, 3, 2, 1)", "F.avg_pool2d({v}, 2, ceil_mode=True)",
        "F.avg_pool2d({v}, 3, 1, 1, count_include_pad=False)", "F.adaptive_avg_pool2d({v}, 1)", "F.adaptive_avg_pool2d({v}, [2, 3])",
        "F.adaptive_max_pool2d({v}, 2)", "F.pad({v}, [1, 0, 2, 1])", "F.pad({v}, [1, 1, 1, 1], mode='reflect')",
        "F.pad({v}, [1, 2, 0, 1], mode='replicate')", "F.pad({v}, [1, 1, 0, 1], mode='circular')", "F.pad({f}, [0, 1], value={x})",
        "F.pad({v}, [-1, 0, 0, -1])", "F.interpolate({v}, scale_factor=2.0)", "F.pixel_shuffle({v}, 2)",
        "F.interpolate({v}, size=[{p}, {p}], mode='bilinear', align_corners=False)",
        "F.interpolate({v}, size=[5, 4], mode='bilinear', align_corners=True)", "F.pixel_unshuffle({v}, 2)",
        "F.unfold({v}, [2, 2], stride=[1, 2])", "{v}.unfold(2, 2, 1)", "F.max_pool1d({w}, 2, 1)", "F.avg_pool1d({w}, 2)",
        "F.pad({w}, [2, 1], mode='reflect')", "F.interpolate({w}, scale_factor=2.0, mode='linear', align_corners=False)",
        "F.channel_shuffle({v}, 2)", "F.lp_pool2d({v}, 2.0, 2)", "F.interpolate({v}, size=[{s}, {s}], mode='nearest')",
        "F.max_pool2d({v}, [1, 2], ceil_mode=True)", "F.local_response_norm({v}, 2)", "F.instance_norm({v})",
        "F.layer_norm({f}, [{f}.size(-1)])", "F.group_norm({v}, 1)", "F.adaptive_avg_pool1d({w}, 2)",
        "F.interpolate({v}, size=[3, 5], mode='bicubic', align_corners=False)",
        "F.interpolate({v}, scale_factor=0.5, mode='bilinear', align_corners=False)",
        "F.interpolate({v}, size=[4, 6], mode='nearest-exact')", "F.fold(F.unfold({v}, [2, 2]), [{v}.size(2), {v}.size(3)], [2, 2])",
        "{w}.unfold(1, 2, 2)", "F.interpolate({v}, size=[4, 4], mode='area')", "F.max_pool2d({v}, 2, return_indices=True)[1]",
        "F.pad({m}, [1, 1, 2, 0], 'constant', {x})",
    ),
    "matrix": (
        "torch.matmul({f}, {f}.transpose(-1, -2))", "{m} @ {m}.t()", "torch.einsum('bij,bkj->bik', {w}, {w})",
        "torch.einsum('ij,ij->i', {m}, {m})", "torch.bmm({w}, {w}.transpose(1, 2))", "torch.einsum('bchw->bhwc', {v})",
        "torch.einsum('bchw,bcij->bhwij', {v}, {v})", "torch.mm({m}, {m}.t())", "torch.einsum('bchw,c->bhw', {v}, {v}[0, :, 0, 0])",
        "torch.addmm({m} @ {m}.t(), {m}, {m}.t(), beta=0.5)", "F.linear({f}, {f}.reshape(-1, {f}.size(-1))[:3])",
        "torch.matmul({f}, {f}.reshape(-1)[:{f}.size(-1)])", "torch.einsum('...i,...i->...', {f}, {f})",
        "torch.outer({f}.reshape(-1)[:3], {f}.reshape(-1)[:4])", "torch.einsum('ii->i', {m} @ {m}.t())",
        "torch.baddbmm({w} @ {w}.mT, {w}, {w}.mT)", "torch.tensordot({f}, {f}, dims={f}.dim())", "torch.cdist({m}, {m})",
        "F.cosine_similarity({f}, {g}, dim={d})", "torch.dot({f}.reshape(-1), {f}.reshape(-1))",
        "F.scaled_dot_product_attention({w}, {w}, {w})", "torch.trace({m})", "torch.kron({m}, torch.eye(2))",
        "torch.bilinear({m}, {m}, torch.ones(2, {m}.size(1), {m}.size(1)), None)", "torch.cross({m}[:, :3], {m}[:, :3], dim=1)",
    ),
    "create": (
        "torch.zeros({f}.shape)", "torch.ones([{p}, {p}])", "torch.full([2, {p}], {x})", "torch.arange({p})", "torch.arange({s})",
        "torch.arange(0, 1, 0.25)", "torch.linspace(0, 1, {p})", "torch.zeros_like({f})", "torch.ones_like({n})", "torch.eye({p})",
        "torch.tensor({x})", "torch.tensor([{k}, {k}])", "{f}.new_zeros([2, {s}])", "torch.full_like({f}, {x})", "{f}.new_ones({f}.shape)",
        "torch.tensor([[{x}], [{x}]])", "torch.arange({s}, dtype=torch.float32)", "torch.arange({f}.size(0)).unsqueeze(1)",
        "{f}.new_full([1, {p}], {x})", "F.one_hot({n}.clamp(0, 3), 4)", "torch.tensor({s})", "torch.scalar_tensor({x})",
        "torch.full([], {k})", "torch.arange({p}, 0, -1)", "torch.ones({o})", "torch.zeros([{s}, 2], dtype=torch.int64)",
        "torch.empty_like({f}).fill_({x})", "torch.logspace(0, 1, 3)",
    ),
    "types": (
        "{f}.to(torch.int32)", "{f}.long()", "{f}.to({n}.dtype)", "{n}.float()", "{n}.type_as({f})", "{f}.int()", "{f}.double()",
        "{f}.bool()", "{n}.to(torch.uint8)", "{n}.to(torch.int8)", "{f}.to(torch.float16).float()", "{f}.type(torch.float32)",
        "{n}.double()", "{b}.long()", "{f}.to(torch.float64).sum()", "{f}.clone()", "{f}.detach()", "{f}.to('cpu')", "{f}.to({f})",
        "torch.as_tensor({f})", "{n}.short()", "{f}.to(torch.bfloat16).float()", "{n}.byte()",
    ),
    "numbers": (
        "{f}.size({d})", "{f}.shape[-1] // 2", "{s} * {k} + {s}", "{s} % {p}", "{s} / {p}", "{s} // -{p}", "-{s} // {p}", "-{s} % {p}",
        "{f}.dim()", "{f}.numel()", "len({o})", "float({s})", "int({r} * {p})", "int(-{r})", "round({r})", "round({r} * 2.5)",
        "math.floor({r})", "math.ceil({r} / 2)", "math.sqrt({p})", "{s} & {k}", "{s} | {p}", "{s} ^ {p}", "{s} ** 2", "{r} ** 2",
        "{r} * {s}", "max({s}, {p})", "min({s}, {k})", "abs({k} - {s})", "{s} << 1", "{s} >> 1", "{r} // 0.5", "{r} % 0.75", "-{r} % 0.75",
        "math.log({p})", "math.exp(-{r})", "max({r}, 0.5)", "{s} - {p} * {s}", "{s} > {k}", "{r} <= {x}", "not {q}", "{q} and {s} > {p}",
        "{q} or {s} == {k}", "{s} != {s}", "bool({s})", "int({q})", "{s} if {q} else {k}", "{r} if {s} > {p} else {x}", "sum({o})",
        "max({o})", "min({o})", "{s} in {o}", "{o}[0] + {o}[-1]", "[{s}, {k}, {p}]", "list({f}.shape)", "{o} + [{k}]", "{o}[1:]",
        "{o}[::-1]", "[i * 2 for i in {o}]", "{o} * 2", "sorted({o})", "[{p}] * {f}.dim()", "{f}.shape[1:]", "{s} == {p} and {s} < {k}",
        "len({f}.shape)", "{f}.size()", "{o} == [{k}]", "~{s}", "{s} // {p} * {p}", "math.pow({p}, 2)", "float({k}) / {p}",
        "int(math.ceil({s} / {p}))", "{r} / {p}", "-({r})", "{s} - 1", "{p} / 2", "round({p} / 2)", "round(-{p} / 2)", "{p} * 0.5 + {x}",
        "abs({x})", "math.trunc({r})", "math.fabs({x})", "pow({p}, 2)", "{p} ** -1", "{o}.index({o}[0])", "{o}.count({k})",
        "divmod({s}, {p})[1]", "'(%%)-(%%)'.format({s}, {k}) == 'a'", "str({s}) == '4'", "str({q}) == 'True'",
        "len('(%%)x(%%)'.format({s}, {q}))", "'ab' + 'c' == 'abc'", "len('abc' * 2)", "'a' in 'abc'", "'abc'[1] == 'b'",
        "'abc'.upper() == 'ABC'",
    ),
}  # fmt: skip
#: Statements of several lines that make {new}.
BLOCKS: tuple[str, ...] = (
    "if {s} > {k}:\n    {new} = {f} + 1\nelse:\n    {new} = {f} * 2", "if {q}:\n    {new} = {s}\nelse:\n    {new} = {k}",
    "{new} = {f}\nif {s} % 2 == 0 and {f}.size({d}) > 1:\n    {new} = {new} * 0.5", "{new} = {f} if {q} else {g}",
    "{new} = {f}\nfor i in range({p}):\n    {new} = {new} * 0.5 + i", "{new} = 0\nfor i in {o}:\n    {new} = {new} + i",
    "{new} = 0\nfor i in range({s}, -1, -2):\n    {new} += i",
    "{new} = {f}\nfor i, u in enumerate([{f}, {g}]):\n    {new} = {new} + u * i",
    "{new} = {f}\nfor u, c in zip([{f}, {g}], [1, {k}]):\n    {new} = {new} * c - u",
    "{new} = 1\nwhile {new} < {s}:\n    {new} = {new} * 2 + 1",
    "{new} = 0\nfor i in range(9):\n    if i == {p}:\n        continue\n    if i > 6:\n        break\n    {new} = {new} + i * i",
    "{new} = 0\nfor i in range({p}):\n    for j in range(i):\n        if (i + j) % 2 == 0:\n            {new} += i * j",
    "{new} = {f}.clone()\n{new}[:, 0] = {x}", "{new} = {f}.clone()\n{new}[0] += 1", "{new} = {f}.clone()\n{new}.add_({g})",
    "{new} = {f}.clone()\n{tmp} = {new}.view(-1)\n{tmp}.mul_(2)", "{new} = {f} * 1\n{new} += {g}", "{new} = {f} * 1\n{new} -= {x}",
    "{new} = {f} * 1\n{new} *= {f}", "{new} = {f} * 1\n{new} /= {p}", "{new} = {n} * 1\n{new} += {k}",
    "{new} = {f} * 1\n{new}.floor_divide_({p})", "{new} = {f} * 1\n{new}.remainder_({p})", "{new} = {n} * 1\n{new} *= {n}",
    "{new} = {f}.clone()\n{new}[{f} > {x}] = {k}", "{new} = {f}.clone()\n{new}[..., 1:] = {f}[..., :-1]",
    "{new} = {f}.clone()\n{new}[:, ::2] *= -1", "{new} = {f}.clone()\n{tmp} = {new}[0]\n{tmp} += 2\n{new} = {new} * 2",
    "{new} = {f}.clone()\n{tmp} = {new}.transpose({d}, {d})\n{tmp}[0] = {x}",
    "{new} = {f}.clone()\n{tmp} = {new}[0]\n{new}.mul_(2)\n{new} = {new}.sum() + {tmp}",
    "{new} = {f}.clone()\n{new}.select({d}, 0).fill_({x})", "{new} = {f}.clone()\n{new}.narrow({d}, 0, 1).zero_()",
    "{new} = {f}.clone()\nfor i in range({new}.size(0)):\n    {new}[i] = {new}[i] * i", "{new} = torch.zeros_like({f})\n{new}.copy_({g})",
    "{new} = torch.zeros([3, {p}])\nfor i in range(3):\n    {new}[i, 0] = i + 1", "{new} = {f}.clone()\n{new}.clamp_(-0.5, 0.5).relu_()",
    "{new} = {f}.clone()\nF.relu({new}, inplace=True)", "{new} = {f}.clone()\n{new}.masked_fill_({f} > {x}, {x})",
    "{new} = {f}.clone()\n{new}.unsqueeze_({d})", "{new} = {f}.clone()\n{new}[:, 0], {new}[:, -1] = {f}[:, -1], {f}[:, 0]",
    "{new} = {f}.clone()\n{tmp} = {new}.unbind(0)\n{tmp}[0].add_(1)", "{new} = {f}.clone()\n{tmp} = {new}.chunk(2, {d})\n{tmp}[0].neg_()",
    "{new} = {f}.clone()\n{new}[:, torch.tensor([0])] = {x}", "{new} = {f}.clone()\n{new}.reshape(-1)[0] = {x}",
    "{new} = {f}.clone()\n{new}.diagonal().fill_({x})", "{new} = {f}.expand([2] + list({f}.shape)).clone()\n{new}[1] -= {f}",
    "{new} = torch.zeros([{f}.size(0), 2])\n{new}[:, 0] = {f}.flatten(1).sum(1)\n{new}[:, 1] = {f}.flatten(1).amax(1)",
    "{new} = {n}.clone()\n{new}[{n} == {k}] = {p}", "{new} = {n}.clone()\n{new}[0] = {s}",
    "{tmp} = (%'a': {f}, 'b': {g%)}\n{new} = {tmp}['a'] - {tmp}['b']",
    "{tmp} = (%'a': {f}, 'b': {g%)}\n{new} = {f}\nfor key, u in {tmp}.items():\n    if key != 'a':\n        {new} = {new} + u",
    "{tmp} = (%1: {f}, 2: {g%)}\n{tmp}[{k}] = {f} * 2\n{new} = torch.stack(list({tmp}.values()))",
    "{tmp} = (%'a': {s%)}\n{tmp}['b'] = {k}\n{new} = sum([u for u in {tmp}.values()]) + len({tmp})",
    "{tmp} = [{f}]\nfor i in range({p}):\n    {tmp}.append({tmp}[-1] * 0.5 + i)\n{new} = torch.stack({tmp})",
    "{new} = torch.cat([u * 2 for u in [{f}, {g}]], {d})", "{tmp} = [{f}, {g}]\n{tmp}.reverse()\n{new} = torch.stack({tmp}, 0)",
    "{tmp} = [{f}]\n{tmp} += [{g}]\n{tmp}.insert(0, {g} * 2)\n{new} = torch.cat({tmp}, {d}) + len({tmp})",
    "{tmp} = [{f}, {g}, {f}]\n{tmp}.pop(0)\ndel {tmp}[0]\n{new} = {tmp}[0]", "{new}, {tmp} = {f}.max({d})",
    "{tmp}, {new} = torch.sort({f}, {d})", "{new}, {tmp} = {f}.shape[0], {f}.shape[1]",
    "{tmp} = ({f}, {s}, {g})\n{new} = {tmp}[0] * {tmp}[1] - {tmp}[2]", "{new} = self.helper({f})",
    "{new} = self.helper({f}, {x}, flag={q})", "{new} = self.helper({f}, other={g}) + self.helper({f}, 3.0, {g}, True)",
    "if {f}.dim() > 9:\n    raise ValueError('bad (%%) of (%%) and (%%)'.format({s}, {q}, {f}.shape))\n{new} = {f} - 1",
    "assert {s} < 999, 'bad (%%)'.format({s})\n{new} = {s} + 1", "with torch.no_grad():\n    {new} = {f} * 3",
    "{new} = {f}\nif {s} < 0:\n    {new} = {new}.sum()",
    "{tmp}: Optional[Tensor] = None\nif {s} > {k}:\n    {tmp} = {f}\n{new} = {g}\nif {tmp} is not None:\n    {new} = {new} + {tmp}",
    "{new} = {f}.size()[-1] * 2 if {q} else {f}.dim()",
    "{tmp} = torch.jit.annotate(List[int], [])\nfor u in {o}:\n    if u > {p}:\n        {tmp}.append(u * u)\n{new} = len({tmp})",
    "{new} = {s}\n{new} = {new} // 2\n{new} += {k}\n{new} *= {p}", "{new} = {r}\n{new} /= 2\n{new} -= {x}",
    "{tmp} = {o}[:]\n{tmp}[0] = {k}\n{tmp}.sort()\n{new} = {tmp} + [{p}]",
    "{tmp} = [[{f}, {g}], [{g}]]\n{new} = {f}\nfor us in {tmp}:\n    for u in us:\n        {new} = {new} + u",
    "{tmp} = {f}.shape\n{new} = {f}.view({tmp}[0], {tmp}[1], -1)",
    "{tmp} = torch.split({f}, [1, {f}.size({d}) - 1], {d})\n{new} = {tmp}[0] + {tmp}[1].sum()",
    "{new} = {f}\nfor {tmp} in {f}.unbind(0):\n    {new} = {new} + {tmp}.sum()",
    "{new} = torch.stack([{f}[i] * i for i in range({f}.size(0))])", "{new} = {f}\nfor u in {f}:\n    {new} = {new} + u.mean()",
    "print({s})\n{new} = {s}", "{new} = {f} + self.buffer", "{new} = {f} * self.weight + self.bias.sum()",
)  # fmt: skip
#: Layers: the class, its arguments by the number of channels, and what it reads.
LAYERS: tuple[tuple[str, Callable[[int, Any], tuple[Any, ...]], str], ...] = (
    ("Conv2d", lambda c, pick: (c, pick((2, 4)), pick((1, 2, 3)), pick((1, 2)), pick((0, 1))), "v"),
    ("Conv2d", lambda c, pick: (c, c * pick((1, 2)), 3, 1, pick(("same", "valid", 1)), 1, c), "v"),
    ("ConvTranspose2d", lambda c, pick: (c, pick((2, 3)), 2, pick((1, 2)), pick((0, 1))), "v"),
    ("BatchNorm2d", lambda c, pick: (c,), "v"),
    ("InstanceNorm2d", lambda c, pick: (c, 1e-5, 0.1, pick((True, False))), "v"),
    ("GroupNorm", lambda c, pick: (1 if c % 2 else 2, c), "v"),
    ("PReLU", lambda c, pick: (pick((1, c)),), "v"),
    ("Conv1d", lambda c, pick: (c, pick((2, 3)), pick((1, 2))), "w"),
    ("Linear", lambda c, pick: (c, pick((3, 4)), pick((True, False))), "last"),
    ("LayerNorm", lambda c, pick: (c,), "last"),
    ("Embedding", lambda c, pick: (12, 4), "index"),
    ("MultiheadAttention", lambda c, pick: (c, 1, 0.0, True, False, False, None, None, True), "attention"),
    ("Upsample", lambda c, pick: (None, 2.0, pick(("nearest", "bilinear"))), "v"),
    ("MaxPool2d", lambda c, pick: (2, 1, 1), "v"),
    ("Softmax2d", lambda c, pick: (), "v"),
    ("ReflectionPad2d", lambda c, pick: ((1, 0, 1, 1),), "v"),
    ("ZeroPad2d", lambda c, pick: (1,), "v"),
    ("Flatten", lambda c, pick: (), "v"),
    ("AdaptiveAvgPool2d", lambda c, pick: (pick((1, 2)),), "v"),
)
_HELPER = """
def helper(self, a: Tensor, scale: float = 2.0, other: Optional[Tensor] = None, flag: bool = False) -> Tensor:
    if other is not None:
        a = a + other
    if flag:
        return a * scale
    return a - scale
"""


@dataclass
class Program:
    """One program.

    Attributes:
        lines: of its method forward.
        arguments: its inputs by name, as tensors of torch.
        module: with the layers, and with the method.
        outputs: names of what it returns.
    """

    arguments: dict[str, Any]
    module: Any
    lines: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    packing: str = "tuple"

    def source(self) -> str:
        """The code of its methods."""
        head = f"def forward(self, {', '.join(f'{name}: Tensor' for name in self.arguments)}):\n"
        returned = list(self.outputs)
        if self.numbers:
            returned.append(f"torch.tensor([{', '.join(f'float({name})' for name in self.numbers)}])")
        text = ", ".join(returned)
        result = {
            "tuple": f"({text}, )",
            "list": f"[{text}]",
            "dict": "{" + ", ".join(f"'k{i}': {r}" for i, r in enumerate(returned)) + "}",
        }
        body = [*self.lines, f"return {returned[0] if len(returned) == 1 else result[self.packing]}"]
        return _HELPER + head + "".join(f"    {line}\n" for text in body for line in text.split("\n"))

    def written(self, form: str, folder: Path) -> Written:
        """The program in a file, and what torch computes.

        Args:
            form: one of FORMS; "dynamic" leaves batches open, and gives inputs of another batch where the program takes them.
            folder: of the file.

        Raises:
            NotWrittenError: the form does not take the program.
        """
        import torch

        path = folder / ("model.pt" if form in ("script", "trace") else "model.pt2")
        given = [value.clone() for value in self.arguments.values()]
        try:
            with torch.no_grad():
                if path.suffix == ".pt":
                    made = (
                        self.scripted() if form == "script" else torch.jit.trace(self.live(), tuple(given), check_trace=False, strict=False)
                    )
                    torch.jit.save(made, path)
                    outputs = torch.jit.load(path)(*(value.clone() for value in self.arguments.values()))
                else:
                    program = torch.export.export(self.live(), tuple(given), dynamic_shapes=self._open() if form == "dynamic" else None)
                    torch.export.save(program, path)
                    given, outputs = self._grown(program.module(), form == "dynamic")
        except Exception as error:
            raise NotWrittenError(str(error)) from error
        inputs = {name: value.numpy() for name, value in zip(self.arguments, given, strict=True)}
        shapes = "; ".join(",".join(map(str, value.shape)) + f":{value.dtype.name}" for value in inputs.values())
        given = {name: value.numpy() for name, value in self.arguments.items()} if path.suffix == ".pt" else inputs
        return Written(path, given, _flat(outputs), shapes if form == "script" else "")

    def _open(self) -> dict[str, Any]:
        import torch

        return {name: {0: torch.export.Dim.AUTO} for name in self.arguments}

    def _grown(self, module: Any, grows: bool) -> tuple[list[Any], Any]:
        """Inputs of a larger batch where the program takes them, and what it gives."""
        import torch

        plain = list(self.arguments.values())
        larger = [torch.cat([value, value[:1]]) for value in plain]
        for given in [larger, plain] if grows else [plain]:
            try:
                return given, module(*(value.clone() for value in given))
            except Exception:
                if given is plain:
                    raise
        raise NotWrittenError

    def live(self) -> Any:
        """The program as a module of Python."""
        import torch

        names = namespace()
        exec(compile(self.source(), "program", "exec"), names)
        made = type("Live", (torch.nn.Module,), {key: names[key] for key in ("helper", "forward")})()
        for name, child in self.module.named_children():
            setattr(made, name, child)
        for name, value in self.module.named_parameters(recurse=False):
            setattr(made, name, value)
        for name, value in self.module.named_buffers(recurse=False):
            made.register_buffer(name, value)
        return made.eval()

    def scripted(self) -> Any:
        """The program as a ScriptModule."""
        import torch

        module = self.module

        class Made(torch.jit.ScriptModule):
            def __init__(self) -> None:
                super().__init__()
                for name, child in module.named_children():
                    setattr(self, name, torch.jit.script(child))
                for name, value in module.named_parameters(recurse=False):
                    setattr(self, name, value)
                for name, value in module.named_buffers(recurse=False):
                    self.register_buffer(name, value)

        made = Made()
        code = re.sub(r"\bF\.", "torch.nn.functional.", self.source())
        made._actual_script_module.define(code)  # which looks names up in this frame
        return made.eval()


class NotWrittenError(Exception):
    """What Python runs, and TorchScript or torch.export does not take."""


@dataclass
class Written:
    """A program in a file.

    Attributes:
        path: of the file.
        inputs: by name.
        outputs: what torch computes of them, in order.
        shapes: of the inputs, as --input-shape states them; "" where the file has them.
    """

    path: Path
    inputs: dict[str, Array]
    outputs: list[Any]
    shapes: str = ""

    def given(self, names: Any) -> dict[str, Array]:
        """The inputs of a graph, which may leave some out."""
        if len(names) == len(self.inputs):
            return dict(zip(names, self.inputs.values(), strict=True))
        return {name: self.inputs[name[0]] for name in names}


def _flat(value: Any) -> list[Any]:
    """The tensors in a result, in order, as arrays; bfloat16 as float32."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in _flat(item)]
    value = value.detach()
    return [(value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()]


def random_program(seed: int, size: int = 8) -> Program:
    """The program of a seed.

    Args:
        seed: of all choices.
        size: how many lines it has at most.
    """
    import torch

    growing = _Growing(np.random.default_rng(seed))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for _ in range(12 * size):
            if len(growing.program.lines) < size + growing.first:
                growing.grow()
        return growing.finished()


class _Growing:
    """A program while it grows, and the value of each of its variables."""

    def __init__(self, rng: np.random.Generator) -> None:
        import torch

        self.rng = rng
        self.torch = torch
        state = int(rng.integers(2**31))
        torch.manual_seed(state)
        shapes = [(self.pick((1, 2, 3)), self.pick((1, 2, 4)), self.pick((3, 4, 5)), self.pick((3, 4, 6)))]
        shapes.append(tuple(self.pick((2, 3, 4)) for _ in range(self.pick((2, 3)))))
        arguments = {name: torch.randn(shape) for name, shape in zip("xy", shapes, strict=True)}
        arguments["z"] = torch.randint(0, 6, (self.pick((1, 2, 3)), self.pick((2, 3))))
        module = torch.nn.Module()
        module.eval()
        module.weight = torch.nn.Parameter(torch.randn(1))
        module.bias = torch.nn.Parameter(torch.randn(3))
        module.register_buffer("buffer", torch.randn(1))
        self.program = Program(arguments, module)
        self.names = namespace()
        self.values: dict[str, Any] = dict(arguments)
        exec(compile(_HELPER, "helper", "exec"), self.names)
        self.names["self"] = _Self(module, self.names["helper"])
        self.made = 0
        for line in ("h = x.size(2)", "e = h * 0.3", "o = [h, 2, 1]", "c = h > 3", "a = x > 0", "w = x.flatten(2)"):
            self.run(line)
        self.first = len(self.program.lines)

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def run(self, text: str, counts: bool = True) -> bool:
        """Whether lines run, and give what is finite and small; only then they stay."""
        scope = {**self.names, **{name: _copied(value) for name, value in self.values.items()}}
        before = set(scope)
        try:
            exec(compile(text, "lines", "exec"), scope)
        except Exception:
            return False
        found = {name: value for name, value in scope.items() if name not in self.names and not name.startswith(("__", "u", "key"))}
        if not all(_fits(value) for value in found.values()):
            return False
        self.values |= {name: value for name, value in found.items() if name in before or re.fullmatch(r"[a-z]\d*", name)}
        self.program.lines.append(text)
        return True

    def grow(self) -> None:
        """Adds a line, or several, or nothing."""
        roll = self.rng.random()
        if roll < 0.12:
            self.layer()
        elif roll < 0.4:
            self.run(self.filled(self.pick(BLOCKS)))
        else:
            self.run(f"{self.fresh()} = {self.filled(self.pick(LINES[self.pick(sorted(LINES))]))}")

    def fresh(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def layer(self) -> None:
        kind, arguments, reads = self.pick(LAYERS)
        wanted = {"last": self._real, "index": self._integers, "attention": self._ranked(3)}.get(reads) or self._ranked(
            {"v": 4, "w": 3}[reads]
        )
        names = [name for name in self.values if wanted(self.values[name])]
        if not names:
            return
        name = self.pick(names)
        shape = tuple(self.values[name].shape) or (1,)
        name_of = f"l{self.made}"
        try:
            made = getattr(self.torch.nn, kind)(*arguments(shape[1] if reads in ("v", "w") else shape[-1], self.pick)).eval()
        except (ValueError, AssertionError, RuntimeError):
            return
        for parameter in (*made.parameters(), *made.buffers()):
            if parameter.dtype.is_floating_point:
                parameter.data = self.torch.rand_like(parameter) + 0.2 if parameter.dim() == 1 else parameter.data
        setattr(self.program.module, name_of, made)
        called = f"self.{name_of}({name}, {name}, {name})[0]" if reads == "attention" else f"self.{name_of}({name})"
        if not self.run(f"{self.fresh()} = {called}"):
            delattr(self.program.module, name_of)

    def filled(self, text: str) -> str:
        """A template with its blanks filled."""
        first: dict[str, str] = {"new": self.fresh(), "tmp": self.fresh()}

        def value(match: re.Match[str]) -> str:
            blank = match[1]
            if blank in first:
                return first[blank]
            if "f" not in first and "{f}" in text:
                first["f"] = self._variable(self._real, "x")
            return first["f"] if blank == "f" else self._blank(blank, first.get("f", "x"))

        return _BLANK.sub(value, text).replace("(%", "{").replace("%)", "}")

    def _blank(self, blank: str, beside: str) -> str:
        number = {
            "k": lambda: str(self.pick((0, 1, 2, 3, -1, 5))),
            "p": lambda: str(self.pick((1, 2, 3, 4))),
            "x": lambda: str(self.pick((0.5, -0.25, 1.5, 0.0, -2.0))),
        }
        if blank in number:
            return number[blank]()
        if blank == "d":
            rank = max(self.values[beside].dim(), 1)
            return str(int(self.rng.integers(-rank, rank)))
        if blank == "g":
            shape = self.values[beside].shape
            return self._variable(lambda value: self._real(value) and value.shape == shape, beside)
        tests: dict[str, tuple[Callable[[Any], bool], str]] = {
            "v": (self._ranked(4), "x"), "w": (self._ranked(3), "w"), "m": (self._ranked(2), "w[0]"), "n": (self._integers, "z"),
            "b": (lambda value: self._is(value, self.torch.bool), "a"),
            "s": (lambda value: type(value) is int, "h"), "r": (lambda value: type(value) is float, "e"),
            "q": (lambda value: type(value) is bool, "c"),
            "o": (lambda value: type(value) is list and all(type(i) is int for i in value), "o"),
        }  # fmt: skip
        return self._variable(*tests[blank])

    def _variable(self, test: Callable[[Any], bool], other: str) -> str:
        names = [name for name, value in self.values.items() if test(value)]
        return self.pick(names[-4:] if self.rng.random() < 0.6 else names) if names else other

    def _is(self, value: Any, *dtypes: Any) -> bool:
        return isinstance(value, self.torch.Tensor) and value.dtype in dtypes

    def _real(self, value: Any) -> bool:
        return self._is(value, self.torch.float32) and value.numel() > 0

    def _integers(self, value: Any) -> bool:
        return self._is(value, self.torch.int64, self.torch.int32)

    def _ranked(self, rank: int) -> Callable[[Any], bool]:
        return lambda value: self._real(value) and value.dim() == rank

    def finished(self) -> Program:
        """The program with what it returns: the last tensors, some others, and the numbers."""
        tensors = [name for name, value in self.values.items() if isinstance(value, self.torch.Tensor) and name.startswith("v")]
        numbers = [name for name, value in self.values.items() if isinstance(value, (int, float)) and name.startswith("v")]
        self.program.outputs = tensors[-4:] or ["x"]
        self.program.numbers = numbers
        self.program.packing = self.pick(("tuple", "list", "dict"))
        return self.program


class _Self:
    """What stands for the module while lines are tried."""

    def __init__(self, module: Any, helper: Any) -> None:
        self._module, self._helper = module, helper

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def helper(self, *given: Any, **named: Any) -> Any:
        return self._helper(self, *given, **named)


def namespace() -> dict[str, Any]:
    """What code of a program may name."""
    import typing

    import torch

    names = {"torch": torch, "F": torch.nn.functional, "math": math, "Tensor": torch.Tensor, "print": lambda *values: None}
    return names | {"Optional": typing.Optional, "List": typing.List}  # noqa: UP006


def _copied(value: Any) -> Any:
    """A value that lines may change without harm to the one that stays."""
    if hasattr(value, "clone"):
        return value.clone()
    return list(map(_copied, value)) if isinstance(value, list) else value


def _fits(value: Any) -> bool:
    """Whether a value is finite and small, as well as all in it."""
    if isinstance(value, (list, tuple)):
        return len(value) < 20 and all(map(_fits, value))
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    if isinstance(value, (int, float)):
        return math.isfinite(value) and abs(value) < 1000
    if hasattr(value, "numel"):
        real = value.dtype.is_floating_point and value.numel() > 0
        return value.numel() <= _LARGEST and not (real and not (value.isfinite().all() and value.abs().max() < 1e4))
    return True
