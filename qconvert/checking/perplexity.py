"""The perplexity of source and result on texts, and how far their logits are apart."""

from __future__ import annotations

import numpy as np

from qconvert.arguments import Progress
from qconvert.arithmetic.rounding import dequantize
from qconvert.checking.findings import TextComparison
from qconvert.checking.outputs import Border
from qconvert.data.texts import TextInputs
from qconvert.errors import OptionError
from qconvert.graph import Array, Tensor
from qconvert.plugins import LoadedModel


def compare_texts(texts: TextInputs, border: Border, models: tuple[LoadedModel, LoadedModel], progress: Progress) -> TextComparison:
    """Run both sides on each window, of which one at a time is in memory.

    Args:
        texts: the windows.
        border: which output is which.
        models: source and result, loaded.
        progress: is called with ("windows", done, total).

    Raises:
        OptionError: the logits have no row for each place of a window, or none for a token that the tokenizer gives.
        RuntimeRefusedError: a runtime does not run a window.
    """
    source, result = models
    tensors = border.graph[texts.output], border.other[border.outputs[texts.output]]
    losses, power, error = [0.0, 0.0], 0.0, 0.0
    for done, (feed, ids) in enumerate(zip(texts.feeds, texts.ids, strict=True)):
        pairs = border.pair_outputs(source.run(feed), result.run(border.convert_inputs(feed, result)))
        stored = next((a, b) for name, a, b in pairs if name == texts.output)
        before, after = (_rows(values, tensor, ids, texts) for values, tensor in zip(stored, tensors, strict=True))
        for side, rows in enumerate((before, after)):
            losses[side] += _loss(rows, ids)
        power += float(np.square(before).sum())
        error += float(np.square(after - before).sum())
        progress("windows", done + 1, len(texts.ids))
    perplexities = float(np.exp(losses[0] / texts.tokens)), float(np.exp(losses[1] / texts.tokens))
    return TextComparison(len(texts.ids), texts.tokens, perplexities, 10 * float(np.log10(power / error)) if error else None)


def _rows(logits: Array, tensor: Tensor, ids: Array, texts: TextInputs) -> Array:
    """The logits of each place of a window, float64 [L, vocabulary]."""
    if logits.ndim != 3 or logits.shape[0] != 1 or logits.shape[1] < len(ids) or logits.shape[2] <= int(ids.max()):
        raise OptionError(
            f"the logits {texts.output!r} have shape {list(logits.shape)}, and a window has {len(ids)} tokens up to {int(ids.max())}",
            file=str(texts.tokenizer),
            remedy="Export the model with the logits of all places, and take the tokenizer that belongs to it.",
            rule="logits-do-not-fit",
        )
    rows = logits[0, : len(ids)]
    return np.asarray(rows if tensor.quantization is None else dequantize(rows, tensor.quantization), np.float64)


def _loss(rows: Array, ids: Array) -> float:
    """The sum of -log of the probabilities of all tokens but the first, each after those before it."""
    largest = rows[:-1].max(axis=1)
    sums = np.log(np.exp(rows[:-1] - largest[:, None]).sum(axis=1)) + largest
    return float((sums - rows[np.arange(len(ids) - 1), ids[1:]]).sum())
