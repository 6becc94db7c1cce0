"""A file is read once, by what it is: whatever links lead to it, when they appear, and over restarts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from timely_spark.errors import Where
from timely_spark.runtime.sources.arrivals import File, Unread
from timely_spark.runtime.sources.folder import Folder
from timely_spark.runtime.sources.journal import FileCounts, FileJournal
from timely_spark.runtime.sources.listing import lists
from timely_spark.runtime.storage.files import Files


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.csv").write_text("n\n1\n")
    (folder / "sub" / "b.csv").write_text("n\n2\n")
    return folder


def folder_of(path: Path, filesystem: Any = None) -> Folder:
    return Folder.of("in", Where("job.py", 1), str(path), "csv", filesystem)


def names(path: Path, filesystem: Any = None) -> list[str]:
    files, _ = folder_of(path, filesystem).listing()
    return sorted(os.path.relpath(file.path, path) for file in files)


class Reading:
    """A source over many runs: what each listing adds, by the journal of a checkpoint."""

    def __init__(self, inbox: Path, checkpoint: Path) -> None:
        self.folder, self.files = folder_of(inbox), Files(checkpoint)
        self.top = inbox
        self.restart()

    def restart(self) -> None:
        self.journal = FileJournal(self.files, "in")
        self.unread = Unread(self.journal.identities())

    def look(self) -> tuple[list[str], dict[str, str]]:
        files, ignored = self.folder.listing()
        ignored |= self.unread.enter(files)
        if new := self.unread.next():
            self.journal.append(new)
        short = {os.path.relpath(name, self.top): why for name, why in ignored.items()}
        return [os.path.relpath(file.path, self.top) for file in new], short


def test_loops_of_links_end_and_a_sibling_is_read_once(inbox: Path) -> None:
    (inbox / "loop").symlink_to(".")
    (inbox / "sub" / "up").symlink_to("..")
    (inbox / "alias").symlink_to("sub")
    (inbox / "self").symlink_to("self")
    (inbox / "0.csv").symlink_to("a.csv")
    assert names(inbox) == ["a.csv", "sub/b.csv"]
    _, ignored = folder_of(inbox).listing()
    assert {os.path.relpath(name, inbox) for name in ignored} == {"loop", "sub/up", "alias", "self", "0.csv"}
    assert f"is the folder {inbox}/sub" in ignored[f"{inbox}/alias"]
    assert f"is a link to {inbox}/a.csv" in ignored[f"{inbox}/0.csv"]
    assert "leads nowhere" in ignored[f"{inbox}/self"]


def test_links_in_folders_of_a_column_take_no_file_from_its_place(inbox: Path) -> None:
    (inbox / "day=1").mkdir()
    (inbox / "day=1" / "all").symlink_to("..")
    (inbox / "day=1" / "a.csv").symlink_to("../a.csv")
    files, _ = folder_of(inbox).listing()
    assert [(os.path.relpath(file.path, inbox), file.values) for file in files] == [
        ("a.csv", None),
        ("sub/b.csv", None),
    ]


def test_a_folder_elsewhere_has_the_columns_of_its_link_and_is_read_once(inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "away" / "hour=3").mkdir(parents=True)
    (tmp_path / "away" / "hour=3" / "c.csv").write_text("n\n3\n")
    (inbox / "day=1").symlink_to(tmp_path / "away")
    (inbox / "day=2").symlink_to(tmp_path / "away")
    files, ignored = folder_of(inbox).listing()
    (linked,) = (file for file in files if file.path.endswith("c.csv"))
    assert linked.path == f"{tmp_path}/away/hour=3/c.csv"
    assert linked.values == (("day", "1"), ("hour", "3"))
    assert [*ignored] == [f"{inbox}/day=2"]
    journal = FileJournal(Files(tmp_path / "checkpoint"), "in")
    journal.append(files)
    assert journal.batch(0) == files


def test_a_real_folder_gives_a_file_its_columns_though_a_link_was_found_first(inbox: Path) -> None:
    (inbox / "day=1" / "deep").mkdir(parents=True)
    for name in ("c.csv", "deep/d.csv"):
        (inbox / "day=1" / name).write_text("n\n3\n")
    (inbox / "0.csv").symlink_to("day=1/c.csv")
    (inbox / "0").symlink_to("day=1/deep")
    files, ignored = folder_of(inbox).listing()
    assert [(os.path.relpath(file.path, inbox), file.values) for file in files] == [
        ("a.csv", None),  # the columns are those of the path
        ("day=1/c.csv", None),
        ("sub/b.csv", None),
        ("day=1/deep/d.csv", None),
    ]
    assert {*ignored} == {f"{inbox}/0", f"{inbox}/0.csv"}


def test_hidden_names_are_not_read_at_any_depth(inbox: Path) -> None:
    for name in ("_temporary/0", ".staging", "sub/_delta_log"):
        (inbox / name).mkdir(parents=True)
        (inbox / name / "part.csv").write_text("n\n9\n")
    for name in (".a.csv", "sub/_b.csv", "c.csv._COPYING_"):
        (inbox / name).write_text("n\n9\n")
    (inbox / ".link.csv").symlink_to("a.csv")
    assert names(inbox) == ["a.csv", "sub/b.csv"]
    assert folder_of(inbox).listing()[1] == {}


def test_the_folder_itself_may_be_a_link(inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(inbox)
    (inbox / "loop").symlink_to(tmp_path / "link")
    (inbox / "0.csv").symlink_to("a.csv")
    files, _ = folder_of(tmp_path / "link").listing()
    assert sorted(file.path for file in files) == [f"{tmp_path}/link/a.csv", f"{tmp_path}/link/sub/b.csv"]
    tree = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    below, _ = folder_of(Path("link"), tree).listing()
    assert sorted(file.path for file in below) == sorted(file.path for file in files)


def test_a_hard_link_is_the_file(inbox: Path, tmp_path: Path) -> None:
    (inbox / "z.csv").hardlink_to(inbox / "a.csv")
    reading = Reading(inbox, tmp_path / "checkpoint")
    new, ignored = reading.look()
    assert sorted(new) == ["a.csv", "sub/b.csv"]
    assert "is a link to" in ignored["z.csv"]
    for _ in range(2):
        (inbox / f"y{_}.csv").hardlink_to(inbox / "a.csv")
        assert reading.look()[0] == []
        reading.restart()
    (inbox / "a.csv").unlink()
    assert reading.look()[0] == []


def test_a_renamed_file_is_the_file_and_another_one_with_its_inode_is_not(
    inbox: Path, tmp_path: Path
) -> None:
    reading = Reading(inbox, tmp_path / "checkpoint")
    reading.look()
    reading.restart()
    (inbox / "a.csv").rename(inbox / "c.csv")
    assert reading.look() == ([], {"c.csv": "was read under another name"})
    status = (inbox / "c.csv").stat()
    other = File(status.st_mtime_ns + 1, "/x", status.st_size, id=f"{status.st_dev}:{status.st_ino}")
    reading.unread.enter([other])
    assert reading.unread.next() == [other], "an inode is used again for other files"


def test_files_of_one_whole_second_may_share_an_inode_one_after_the_other() -> None:
    first, second = (File(7_000_000_000, path, 4, id="1:2") for path in ("/a", "/b"))
    unread = Unread({first.path: first.identity})
    assert unread.enter([second]) == {}
    assert unread.next() == [second]


def test_a_link_that_is_replaced_leads_to_new_files(inbox: Path, tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "part.csv").write_text(f"n\n{version}\n")
    (inbox / "current").symlink_to(tmp_path / "1")
    reading = Reading(inbox, tmp_path / "checkpoint")
    assert "../1/part.csv" in reading.look()[0]
    (inbox / "current").unlink()
    (inbox / "current").symlink_to(tmp_path / "2")
    assert reading.look()[0] == ["../2/part.csv"]
    (inbox / "current").unlink()
    (inbox / "current").symlink_to(tmp_path / "1")
    reading.restart()
    assert reading.look()[0] == []


def test_a_file_that_changes_after_it_was_read_is_told(inbox: Path, tmp_path: Path) -> None:
    reading = Reading(inbox, tmp_path / "checkpoint")
    reading.look()
    reading.restart()
    (inbox / "a.csv").write_text("n\n1\n2\n")
    new, ignored = reading.look()
    assert new == []
    assert "has changed" in ignored["a.csv"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of bytes")
def test_names_that_are_no_text_and_things_that_are_no_files(inbox: Path) -> None:
    Path(os.fsdecode(os.fsencode(inbox) + b"/\xff.csv")).write_text("n\n9\n")
    os.mkfifo(inbox / "pipe.csv")
    (inbox / "dangling.csv").symlink_to("nowhere")
    assert names(inbox) == ["a.csv", "sub/b.csv"]
    _, ignored = folder_of(inbox).listing()
    assert {os.path.relpath(name, inbox) for name in ignored} == {
        "\\xff.csv".replace("x", "udc"),
        "pipe.csv",
        "dangling.csv",
    }


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "symlink", "hard", "folder", "rename", "remove", "restart", "look"]),
            st.integers(0, 5),
            st.integers(0, 5),
        ),
        max_size=25,
    )
)
def test_every_content_is_read_once_whatever_leads_to_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    root = tmp_path_factory.mktemp("links")
    inbox = root / "in"
    (inbox / "sub").mkdir(parents=True)
    reading, read, written = Reading(inbox, root / "checkpoint"), list[str](), 0
    for step, a, b in [*steps, ("look", 0, 0)]:
        old, new = (inbox / ("sub" * (n % 2)) / f"{n}" for n in (a, b))
        if step == "look":
            read += [(reading.top / path).read_text() for path in reading.look()[0]]
        elif step == "restart":
            reading.restart()
        elif step == "write" and not os.path.lexists(new):
            written += 1
            new.write_text(f"content {written}")
        else:
            _change(step, old, new)
    there = {Path(folder, name) for folder, _, names in os.walk(inbox) for name in names}
    assert len(read) == len(set(read)), "nothing is read twice"
    assert {path.read_text() for path in there if path.is_file()} <= set(read), "and all is read"
    assert FileCounts.of(reading.files, "in").listed == len(read)


def _change(step: str, old: Path, new: Path) -> None:
    if step == "remove" and os.path.lexists(old):
        old.unlink()
    elif step == "rename" and os.path.lexists(old) and not os.path.lexists(new):
        old.rename(new)
    elif not os.path.lexists(new):
        if step == "symlink":
            new.symlink_to(old)
        elif step == "folder":
            new.symlink_to(old.parent)
        elif step == "hard" and old.is_file():
            new.hardlink_to(old.resolve())


@pytest.mark.parametrize(
    ("place", "listed"),
    [
        ("in", True),
        ("in/checkpoint", True),
        ("in/day=1/x", True),
        ("link/x", True),
        ("other/../in/x", True),
        ("in2/checkpoint", False),
        ("in/_checkpoint", False),
        ("in/.x/y", False),
        ("in/day=1/_x/y", False),
        (".", False),
    ],
)
def test_what_is_written_to_a_place_is_listed_in_a_folder(place: str, listed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    for folder in ("in", "link"):
        assert lists(tmp_path / folder, tmp_path / place) == listed
