"""Programs that tests submit to a cluster: they are not tests, and are not imported here."""

from __future__ import annotations

collect_ignore = ["killed.py", "shipped.py", "speculated.py", "vertices.py"]
