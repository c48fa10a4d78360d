"""A module compiled by inductor with freezing, and the oneDNN kernels that its code calls."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from qconvert.formats.torch.program import torch_package
from qconvert.graph import Array


def lowered_calls(module: Any, inputs: Sequence[Array]) -> tuple[Counter[str], list[Array]]:
    """How often the compiled code calls each integer kernel of oneDNN, and its outputs."""
    torch = torch_package()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        from torch._inductor import config
        from torch._inductor.utils import run_and_get_code

        with config.patch(freezing=True):
            found, code = run_and_get_code(torch.compile(module), *[torch.from_numpy(value) for value in inputs])
    calls = Counter(re.findall(r"torch\.ops\.onednn\.(\w+)", "\n".join(code)))
    return calls, [value.numpy() for value in found]
