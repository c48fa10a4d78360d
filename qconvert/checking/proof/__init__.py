"""prove(): which operators of a result give the source's integers for every input, decided without running anything."""

from __future__ import annotations
