"""`DeltaHistory`: whether another writer has taken an output's epochs away from a Delta table.

`RESTORE` to an earlier version and an overwrite of the whole table leave its properties and transactions, so
the table is still the output's own, and Delta would skip the epochs that it lacks. Its log says so.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from timely_spark.runtime.storage.files import location
from timely_spark.runtime.storage.stores import filesystem_of, first_rows
from timely_spark.state.bounds import parse_json

#: A version in the log of a table.
COMMIT = re.compile(r"(\d{20})\.json")

_log = logging.getLogger(__name__)

Commit = list[dict[str, Any]]
#: So many commits are looked at for one that adds rows.
_LOOKED = 10


@dataclass
class DeltaHistory:
    """The versions of a table since the last one that an output has written."""

    #: the location of the table, as Delta gives it
    table: str
    #: the id of the output's transactions
    app: str
    #: of each version since the output's last one that was looked at, whether it has all epochs of the
    #: output; empty if the log cannot be read
    _complete: dict[int, bool] = field(default_factory=dict)
    #: whether there are epochs that a version may lack
    _delivered: bool = False
    #: the last transaction of the output that was seen, of whatever run; -1 if there is none
    last: int = -1
    #: the last transaction of the output that came after `begin`, and the last one that this run has begun
    _newest_own: int = -1
    _reached: int = -1

    def begin(self, *, own: bool, delivered: bool) -> None:
        """Begin with the last version but one of the output, if the table is its `own`; or the newest.

        Without a version of the output, begin before the oldest one. Whether the output has `delivered`
        counts if the log does not say, because its first versions were removed.
        """
        version = self._newest()
        if version is None:
            return
        self._delivered = False
        if own:
            ours: list[int] = []
            # the last may have come after a RESTORE that the check before the write did not see
            while len(ours) < 2 and (commit := self._commit(version)) is not None:
                if (transaction := self._transaction(commit)) is not None:
                    self.last = max(self.last, transaction)
                    ours.append(version)
                version -= 1
            unknown = not ours and delivered and version >= 0
            if unknown:
                _log.warning(
                    "%s: the log begins after this output's last epoch; a RESTORE or an overwrite before "
                    "version %d, which would have taken epochs away, cannot be seen",
                    self.table,
                    version + 1,
                )
            self._delivered = bool(ours) or unknown
            version = min(ours, default=version)
        self._complete = {version: True}

    def is_complete(self) -> bool:
        """Whether the newest version has all epochs of the output. True if the log cannot be read."""
        if not self._complete:
            return True
        if not self._read_on() and self._commit(max(self._complete)) is None:
            # it was removed from the log, and so may be versions after it
            self.begin(own=True, delivered=self._delivered)
            self._read_on()
        return self._complete[max(self._complete)]

    def is_shared(self, transaction: int) -> bool:
        """Whether another run has written later than this one, which now begins `transaction`.

        Before the first transaction of this run, the run before may still have written its last one.
        """
        before, self._reached = self._reached, max(self._reached, transaction)
        return -1 < before < self._newest_own

    def written(self, folder: str, most: int) -> pa.Table | None:
        """So many rows, at most, of a file of the newest commit that has added one, in the table's folder."""
        for version in sorted(self._listed(), reverse=True)[:_LOOKED]:
            for file in (one["add"] for one in self._commit(version) or () if one.get("add")):
                if file.get("dataChange", True) and not file.get("deletionVector"):
                    rows = first_rows(f"{folder}/{unquote(file['path'])}", most)
                    for name, value in dict(file.get("partitionValues") or ()).items():
                        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
                    return rows
        return None

    def _read_on(self) -> bool:
        """Look at the versions after the last one that was looked at; whether there are any."""
        first = version = max(self._complete)
        while (commit := self._commit(version + 1)) is not None:
            complete = not self._delivered or self._is_complete_after(
                commit, complete=self._complete[version]
            )
            if (transaction := self._transaction(commit)) is not None:
                self._complete.clear()
                self._delivered = True
                self._newest_own = transaction
                self.last = max(self.last, transaction)
            version += 1
            self._complete[version] = complete
        return version != first

    def _is_complete_after(self, commit: Commit, *, complete: bool) -> bool:
        """Whether the table is complete after a commit, if it was `complete` before."""
        info: dict[str, Any] = next((one["commitInfo"] for one in commit if "commitInfo" in one), {})
        parameters = info.get("operationParameters") or {}
        if info.get("operation") == "RESTORE":
            version = parameters.get("version")
            if version is None:  # a time was given
                return self._is_back(commit)
            return self._complete.get(int(version), False)
        everything = parameters.get("predicate") in {None, "", "[]"}
        everything &= parameters.get("isDynamicPartitionOverwrite") not in {True, "true"}
        removes = any(one["remove"].get("dataChange", True) for one in commit if "remove" in one)
        if parameters.get("mode") == "Overwrite" and everything and removes:
            return False
        return complete

    def _is_back(self, commit: Commit) -> bool:
        """Whether a RESTORE gives the files of a version that has all epochs: it undoes those after it."""
        undone: set[tuple[str, str]] = set()
        for version in sorted(self._complete, reverse=True):
            if self._complete[version] and undone == _files(commit):
                return True
            if (later := self._commit(version)) is None:
                break
            undone ^= _files(later)
        return False

    def _transaction(self, commit: Commit) -> int | None:
        """The number of the output's transaction in a commit; None if it has none."""
        transactions = (action["txn"] for action in commit if "txn" in action)
        return next((int(one["version"]) for one in transactions if one["appId"] == self.app), None)

    def _newest(self) -> int | None:
        lines = self._lines("_last_checkpoint")
        version = int(lines[0]["version"]) if lines else -1
        if self._commit(version) is None:
            return max(self._listed(), default=None)
        while self._commit(version + 1) is not None:
            version += 1
        return version

    def _commit(self, version: int) -> Commit | None:
        return self._lines(f"{version:020}.json")

    def _listed(self) -> list[int]:
        """The versions in the log."""
        try:
            system, top = filesystem_of(location(self.table))
            infos = system.get_file_info(fs.FileSelector(f"{top}/_delta_log"))
        except (OSError, ValueError, NotImplementedError):  # pa.ArrowInvalid is a ValueError
            return []
        return [int(match[1]) for info in infos if (match := COMMIT.fullmatch(info.base_name))]

    def _lines(self, name: str) -> Commit | None:
        """The content of a file of the log; None if the file was removed or cannot be read."""
        try:
            system, top = filesystem_of(location(self.table))
            with system.open_input_stream(f"{top}/_delta_log/{name}") as file:
                return [parse_json(line) for line in file.read().splitlines()]
        except (OSError, ValueError, NotImplementedError):
            return None


def remove_begun(table: str) -> None:
    """Remove a log without versions, if the folder has nothing else.

    A process leaves it that is killed while it makes the table: Delta makes the folder of the log first, with
    one for staged commits, and takes it for a table.
    """
    try:
        system, top = filesystem_of(location(table))
        inside = [info.base_name for info in system.get_file_info(fs.FileSelector(top))]
        log = [info.base_name for info in system.get_file_info(fs.FileSelector(f"{top}/_delta_log"))]
        others = {*inside, *log} - {"_delta_log", "_staged_commits"}
        if all(name.startswith(".") for name in others):
            system.delete_dir(f"{top}/_delta_log")
    except (OSError, ValueError, NotImplementedError):  # there is no log, or Delta says what is wrong
        return


def _files(commit: Commit) -> set[tuple[str, str]]:
    """The files that a commit adds or removes, each with its deleted rows."""
    changes = [one[kind] for one in commit for kind in ("add", "remove") if kind in one]
    return {(file["path"], json.dumps(file.get("deletionVector"), sort_keys=True)) for file in changes}
