"""Programs that tests submit to a cluster: they are no tests, and are not imported here."""

from __future__ import annotations

collect_ignore = ["shipped.py", "speculated.py", "staying.py", "vertices.py"]
