"""`DeltaHistory`: whether another writer has taken an output's epochs away from a Delta table.

`RESTORE` to an earlier version and an overwrite of the whole table leave its properties and transactions, so
the table is still the output's own, and Delta would skip the epochs that it lacks. Its log says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any

from pyarrow import fs

from timely_spark.runtime.storage.files import location
from timely_spark.runtime.storage.stores import filesystem_of

#: A start looks at so many versions at most for the output's last two.
_BACK = 200

Commit = list[dict[str, Any]]


@dataclass
class DeltaHistory:
    """The versions of a table since the last one that an output has written."""

    #: the place of the table, as Delta tells it
    table: str
    #: the id of the output's transactions
    app: str
    #: the newest version that was looked at; None: the log cannot be read
    _seen: int | None = None
    #: of each version since the output's last one, whether it has all epochs of the output
    _whole: dict[int, bool] = field(default_factory=dict)

    def begin(self, *, own: bool) -> None:
        """Begin with the last version but one of the output, if the table is its `own`; or the newest."""
        self._seen = self._newest()
        if self._seen is None:
            return
        if own:
            back = range(self._seen, max(-1, self._seen - _BACK), -1)
            commits = takewhile(itemgetter(1), ((version, self._commit(version)) for version in back))
            # the last may have come after a RESTORE that the check before the write did not see
            last_two = islice((version for version, commit in commits if self._is_own(commit or [])), 2)
            self._seen = min(last_two, default=self._seen)
        self._whole = {self._seen: True}

    def is_whole(self) -> bool:
        """Whether the newest version has all epochs of the output. True if the log cannot be read."""
        if self._seen is None:
            return True
        while (commit := self._commit(self._seen + 1)) is not None:
            whole = self._after(commit, whole=self._whole[self._seen])
            if self._is_own(commit):
                self._whole.clear()
            self._seen += 1
            self._whole[self._seen] = whole
        return self._whole[self._seen]

    def _after(self, commit: Commit, *, whole: bool) -> bool:
        """Whether the table is whole after a commit."""
        made: dict[str, Any] = next((one["commitInfo"] for one in commit if "commitInfo" in one), {})
        parameters = made.get("operationParameters") or {}
        if made.get("operation") == "RESTORE":
            version = parameters.get("version")
            return version is not None and self._whole.get(int(version), False)
        everything = parameters.get("predicate") in {None, "", "[]"}
        if parameters.get("mode") == "Overwrite" and everything and any("remove" in one for one in commit):
            return False
        return whole

    def _is_own(self, commit: Commit) -> bool:
        return any(action.get("txn", {}).get("appId") == self.app for action in commit)

    def _newest(self) -> int | None:
        found = self._lines("_last_checkpoint")
        version = int(found[0]["version"]) if found else 0
        if found is None and self._commit(0) is None:
            return None
        while self._commit(version + 1) is not None:
            version += 1
        return version

    def _commit(self, version: int) -> Commit | None:
        return self._lines(f"{version:020}.json")

    def _lines(self, name: str) -> Commit | None:
        """What a file of the log says; None: it is not there, or cannot be read."""
        try:
            system, top = filesystem_of(location(self.table))
            path = f"{top}/_delta_log/{name}"
            if system.get_file_info(path).type != fs.FileType.File:
                return None
            with system.open_input_stream(path) as file:
                return [json.loads(line) for line in file.read().splitlines()]
        except (OSError, ValueError, NotImplementedError):  # pa.ArrowInvalid is a ValueError
            return None
