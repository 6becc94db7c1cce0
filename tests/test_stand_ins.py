"""A function in another's place that is called otherwise than it can be fails its test."""

from __future__ import annotations

from contextlib import suppress

import pytest


class Log:
    """Something to patch."""

    def prune(self, number: int, *, keep: int) -> tuple[int, int]:
        return number, keep

    @classmethod
    def of(cls, number: int) -> int:
        return number


def test_a_function_with_the_arguments_of_before_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "prune", lambda self, number: number)
    monkeypatch.setattr(Log, "of", classmethod(lambda cls: cls))

    with (
        pytest.raises(pytest.fail.Exception, match=r"test_stand_ins.*wrongly.*keep"),
        suppress(Exception),
    ):
        Log().prune(1, keep=2)
    with pytest.raises(pytest.fail.Exception, match=r"called wrongly"), suppress(Exception):
        Log.of(1)


def test_so_is_one_that_calls_the_other_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Log.prune
    monkeypatch.setattr(Log, "prune", lambda self, number, *, keep: real(self, number + keep))
    with pytest.raises(pytest.fail.Exception, match=r"called wrongly.*keep"), suppress(Exception):
        Log().prune(1, keep=2)

    def unpacks(self: Log, number: int, *, keep: int) -> int:
        one, two, three = real(self, number, keep=keep)
        return one + two + three

    monkeypatch.setattr(Log, "prune", unpacks)
    with pytest.raises(pytest.fail.Exception, match=r"called wrongly.*unpack"), suppress(Exception):
        Log().prune(1, keep=2)


def test_what_fits_or_fails_on_purpose_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Log.prune
    monkeypatch.setattr(Log, "prune", lambda self, number, *, keep: real(self, number + 1, keep=keep))
    assert Log().prune(1, keep=2) == (2, 2)

    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr("tests.test_stand_ins.Log.prune", refuse)
    with pytest.raises(OSError, match=r"^$"):
        Log().prune(1, keep=2)
    monkeypatch.undo()
    assert Log.prune is real
