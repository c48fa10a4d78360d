"""Files in and out: memory-mapped reading, and outputs that appear whole or not at all."""

from __future__ import annotations

from qconvert.files import documents
from qconvert.files.atomic_writes import whole_file, whole_folder
from qconvert.files.mapped import copy_mapped, file_digest, map_file, named_by_content, release_pages
from qconvert.files.names import require_utf8, require_writable, require_writable_folder

__all__ = [
    "copy_mapped", "documents", "file_digest", "map_file", "named_by_content", "release_pages", "require_utf8", "require_writable",
    "require_writable_folder", "whole_file", "whole_folder",
]  # fmt: skip
