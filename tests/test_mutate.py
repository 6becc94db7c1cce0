"""The mutations still fit the code: `make mutate` tells which of them are noticed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutate import ROOT, mutations

ALL = mutations()


@pytest.mark.parametrize("file", sorted({one.file for one in ALL}))
def test_each_text_stands_exactly_once_and_what_comes_instead_can_be_read(file: str) -> None:
    for one in ALL:
        if one.file == file:
            assert not one.stale, f"stale: {one}"
            assert one.old != one.new
            ast.parse((ROOT / file).read_text().replace(one.old, one.new))


def test_there_are_many_and_no_two_are_the_same() -> None:
    assert len(ALL) >= 100
    assert len({(one.file, one.old, one.new) for one in ALL}) == len(ALL)


def test_the_tests_that_must_notice_are_there() -> None:
    named = {test.partition("::")[0] for one in ALL for test in one.tests}

    assert [test for test in sorted(named) if not (ROOT / test).exists()] == []
