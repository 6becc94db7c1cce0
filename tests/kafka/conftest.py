"""Programs that the tests start, which are not tests."""

from __future__ import annotations

collect_ignore = ["killed.py", "killed_source.py"]
