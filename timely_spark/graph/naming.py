"""What steps and loops are called: by the user, or after what he called, or after what they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from timely_spark.errors import GraphError, Where

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Name:
    """A step's or a loop's name. A derived one gives way where the user gives it to something else."""

    #: of the loop around; None in the outermost scope
    outer: Name | None
    text: str
    where: Where
    #: whether it is the user's own word, which never changes
    given: bool
    #: whether a changed flow can tell by it what is the same: it is the user's word, or made of his word
    known: bool
    #: what it is derived from
    root: str = ""
    #: with those of the loops around
    full: str = ""

    def __post_init__(self) -> None:
        self.update()

    def update(self) -> None:
        """Let `full` be what it is by now."""
        self.full = f"{self.outer.full}.{self.text}" if self.outer is not None else self.text

    @property
    def is_known(self) -> bool:
        """Whether it is known, and those of the loops around are."""
        return self.known and (self.outer is None or self.outer.is_known)


@dataclass(frozen=True, slots=True)
class Owner:
    """An operator with a name, while its steps are made: those that are given none are called after it."""

    #: the name as the operator got it, and as it is in its scope and in the flow
    said: str | None
    text: str
    full: str
    given: bool
    known: bool


@dataclass(eq=False)
class Names:
    """The names of a flow: no two are the same."""

    every: dict[str, Name] = field(default_factory=dict)
    derived: Counter[str] = field(default_factory=Counter)
    owner: Owner | None = None

    def copied(self) -> tuple[Names, dict[Name | None, Name | None]]:
        """Names that are the same, and stay so whatever becomes of these; and for each name the other one."""
        new: dict[Name | None, Name | None] = {None: None}
        for name in self.every.values():  # a loop's comes before those of its steps
            new[name] = replace(name, outer=new[name.outer])
        every = {name.full: name for name in new.values() if name is not None}
        return Names(every, Counter(self.derived)), new

    def add(self, outer: Name | None, kind: str, said: str | None, where: Where) -> Name:
        """A name that nothing else has: the given one, or one derived from the kind and the place.

        Args:
            outer: of the loop around.
            kind: what it is derived from.
            said: the given one.
            where: the user's line.

        Raises:
            GraphError: the user gave it before, or it cannot be one.
        """
        owner = self.owner
        if owner is None or (said is not None and said == owner.said and owner.given):
            if said is None:
                return self._derived(outer, kind, kind, where, known=False)
            return self._given(outer, said, where)
        if said is not None and said == owner.said:
            word = owner.text
        else:
            within = outer is not None and f"{outer.full}.".startswith(f"{owner.full}.")
            word = (said or kind) if within else f"{owner.text}.{said or kind}"
        return self._derived(outer, word, kind, where, known=owner.known)

    def part(self, of: Name, word: str) -> Name:
        """The name of what is put in behind a step."""
        return self._derived(of.outer, f"{of.text}.{word}", word, of.where, known=of.known)

    def owned(self, outer: Name | None, said: str | None) -> Owner | None:
        """The owner of the steps of an operator that was given a name, or none."""
        if said is None or (self.owner is not None and self.owner.said == said):
            return self.owner
        if self.owner is None:
            full = f"{outer.full}.{said}" if outer is not None else said
            return Owner(said, said, full, given=True, known=True)
        within = outer is not None and f"{outer.full}.".startswith(f"{self.owner.full}.")
        text = said if within else f"{self.owner.text}.{said}"
        full = f"{outer.full}.{text}" if outer is not None else text
        return Owner(said, text, full, given=False, known=self.owner.known)

    @contextmanager
    def by(self, owner: Owner | None) -> Iterator[Owner | None]:
        """Let steps that are given no name be called after an owner; gives the one they were before."""
        before, self.owner = self.owner, owner
        try:
            yield before
        finally:
            self.owner = before

    def _given(self, outer: Name | None, said: Any, where: Where) -> Name:
        if not isinstance(said, str) or not said or set(said) & set("./\\\0\n"):
            msg = (
                f"step name {said!r} ({where}) is no text, is empty, or has one of . / \\ in it. "
                "Hint: use letters, digits, _ and -."
            )
            raise GraphError(msg)
        full = f"{outer.full}.{said}" if outer is not None else said
        if (other := self.every.get(full)) is not None:
            if other.given:
                msg = (
                    f"step {full!r} ({where}) has the name of the step at {other.where}. "
                    "Hint: give each step a name of its own."
                )
                raise GraphError(msg)
            self._give_way(other)
        made = Name(outer, said, where, given=True, known=True)
        self.every[made.full] = made
        return made

    def _derived(self, outer: Name | None, word: str, root: str, where: Where, *, known: bool) -> Name:
        text = self._free(outer, word)
        made = Name(outer, text, where, given=False, known=known, root=word)
        self.every[made.full] = made
        return made

    def _free(self, outer: Name | None, word: str) -> str:
        prefix, text = f"{outer.full}." if outer is not None else "", word
        while prefix + text in self.every:
            self.derived[prefix + word] += 1
            text = f"{word}_{self.derived[prefix + word] + 1}"
        return text

    def _give_way(self, name: Name) -> None:
        name.text = self._free(name.outer, name.root)
        for one in self.every.values():  # a loop's comes before those of its steps
            one.update()
        self.every = {one.full: one for one in self.every.values()}


def composed(operator: Callable[P, R]) -> Callable[P, R]:
    """Makes an operator of one that is made of several steps.

    Its steps that are given no name are called after the one that it is given (`name=`), which one of them,
    or its loop, must have: so a changed flow knows all of them again by a name that the user gave.
    """

    @wraps(operator)
    def made(*args: P.args, **options: P.kwargs) -> R:
        name: Any = options.get("name")
        given: Any = (getattr(one, "index", one) for one in (*args, *options.values()))
        of = next((one for one in given if hasattr(one, "stage")), None)
        if name is None or of is None:
            return operator(*args, **options)
        with of.flow.graph.parts(of.stage.scope, name):
            return operator(*args, **options)

    return made
