"""Files of text, CSV and JSON, as Arrow reads them: decompressed and in UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import pyarrow as pa

TextFile: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Opens the content of a file of text, from its beginning."""

#: What Arrow's format of CSV decompresses, and its streams do not.
_COMPRESSED = {".zstd": "zstd", ".brotli": "brotli"}


def open_text(place: Any, path: str, form: Any) -> Any:
    """The content of a file of text as Arrow reads it: decompressed as its name says, in UTF-8."""
    stream = place.open_input_stream(path, compression=_COMPRESSED.get(PurePosixPath(path).suffix, "detect"))
    encoding = getattr(form.default_fragment_scan_options.read_options, "encoding", "utf8")  # JSON is UTF-8
    return pa.transcoding_input_stream(stream, encoding, "utf8")
