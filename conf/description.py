"""The package's description: README, as a page that is not beside the repository's other files can show it.

Hatchling loads `Description` when it builds (`pyproject.toml`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A link to a file of the repository, or a picture in it.
LOCAL = re.compile(r"!?\[([^\]]+)\]\((?!\w+:)([^)#\s]+)(?:#[^)\s]*)?\)")


def standalone(readme: str) -> str:
    r"""The text with paths in place of links that lead to the repository's files.

    >>> standalone("[Sizing](docs/sizing.md#time) and [Naiad](https://dl.acm.org)")
    'Sizing (`docs/sizing.md`) and [Naiad](https://dl.acm.org)\\n\\nPaths are those of the source archive.\\n'
    """
    return LOCAL.sub(r"\1 (`\2`)", readme).rstrip() + "\n\nPaths are those of the source archive.\n"


class Description(MetadataHookInterface):
    """Gives the package its description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": standalone(text)}
