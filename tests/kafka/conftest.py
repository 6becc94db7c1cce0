"""Programs that the tests start: they are no tests."""

from __future__ import annotations

collect_ignore = ["killed.py"]
