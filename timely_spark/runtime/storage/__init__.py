"""The files of a checkpoint: files with checksums, blobs, the round log, entries of handles, the lock."""

from __future__ import annotations
