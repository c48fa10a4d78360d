"""Keys of Graph.metadata."""

from __future__ import annotations

__all__ = ["SOURCE_KERNELS"]

#: The kernels that the source was made for and that people have seen it run with, such as "tflite-xnnpack": how they round matters to
#: passes. It is of the graph alone: a file that is written is made for other kernels.
SOURCE_KERNELS = "source.kernels"
