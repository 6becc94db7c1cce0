"""Names of steps and loops: given by the user, derived from such a name, or derived from the operator."""

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
    """The name of a step or loop. A derived name changes if the user gives it to another step."""

    #: the name of the loop around it; None in the outermost scope
    outer: Name | None
    text: str
    where: Where
    #: whether the user gave it; such a name never changes
    from_user: bool
    #: whether it is the user's name or derived from one: a changed flow finds the step's state by it
    stable: bool
    #: the text from which it is derived, before a number was appended
    root: str = ""

    @property
    def full(self) -> str:
        """The text with the names of the loops around it."""
        return _inside(self.outer, self.text)

    @property
    def is_stable(self) -> bool:
        """Whether this name and those of the loops around it are stable."""
        return self.stable and (self.outer is None or self.outer.is_stable)


@dataclass(frozen=True, slots=True)
class Owner:
    """A named operator while its steps are added: unnamed steps are named after it."""

    #: the name as the user gave it; `text`: in its scope; `full`: in the flow
    argument: str | None
    text: str
    full: str
    from_user: bool
    stable: bool

    def part(self, outer: Name | None, word: str) -> str:
        """The text of a step's name in loop `outer`; the operator's own loops have its name."""
        inside = outer is not None and f"{outer.full}.".startswith(f"{self.full}.")
        return word if inside else f"{self.text}.{word}"


def is_text(value: Any) -> bool:
    """Whether a value is a text, not empty, that UTF-8 can encode: without lone surrogates."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= one <= "\udfff" for one in value)


def check_step_name(text: Any, where: Where) -> None:
    """Refuse what is not a name of a step."""
    if not is_text(text) or set(text) & set("./\\\0\n"):
        msg = f"step name {text!r} is not a text, is empty, or has one of . / \\ in it"
        raise GraphError(msg, where=where, hint="use letters, digits, _ and -.")


def _inside(outer: Name | None, text: str) -> str:
    """The full name of a step in a loop."""
    return text if outer is None else f"{outer.full}.{text}"


@dataclass(eq=False)
class Names:
    """The names of a flow, which are unique."""

    every: dict[str, Name] = field(default_factory=dict)
    derived: Counter[str] = field(default_factory=Counter)
    owner: Owner | None = None

    def copied(self) -> tuple[Names, dict[Name | None, Name | None]]:
        """An independent copy; and for each name its copy."""
        copies: dict[Name | None, Name | None] = {None: None}
        for name in self.every.values():  # a loop precedes its steps
            copies[name] = replace(name, outer=copies[name.outer])
        every = {name.full: name for name in copies.values() if name is not None}
        return Names(every, Counter(self.derived)), copies

    def add(self, outer: Name | None, kind: str, argument: str | None, where: Where) -> Name:
        """Add a unique name: the given one, or one derived from `kind` and the owner."""
        owner = self.owner
        if owner is None or (argument is not None and argument == owner.argument and owner.from_user):
            if argument is None:
                return self._derived(outer, kind, where, stable=False)
            return self._from_argument(outer, argument, where)
        if argument is not None and argument == owner.argument:
            word = owner.text
        else:
            word = owner.part(outer, argument or kind)
        return self._derived(outer, word, where, stable=owner.stable)

    def part(self, name: Name, word: str) -> Name:
        """The name of a step that the compiler inserts behind `name`."""
        return self._derived(name.outer, f"{name.text}.{word}", name.where, stable=name.stable)

    def owned(self, outer: Name | None, argument: str | None) -> Owner | None:
        """The owner of the steps of an operator with this `name` argument; None if they have no owner."""
        if argument is None or (self.owner is not None and self.owner.argument == argument):
            return self.owner
        if self.owner is None:
            return Owner(argument, argument, _inside(outer, argument), from_user=True, stable=True)
        text = self.owner.part(outer, argument)
        return Owner(argument, text, _inside(outer, text), from_user=False, stable=self.owner.stable)

    @contextmanager
    def by(self, owner: Owner | None) -> Iterator[Owner | None]:
        """Name unnamed steps after `owner` within the context; yields the previous owner."""
        before, self.owner = self.owner, owner
        try:
            yield before
        finally:
            self.owner = before

    def _from_argument(self, outer: Name | None, text: Any, where: Where) -> Name:
        check_step_name(text, where)
        full = _inside(outer, text)
        if (other := self.every.get(full)) is not None:
            if other.from_user:
                msg = f"step {full!r} has the name of the step at {other.where}"
                raise GraphError(msg, where=where, hint="give each step a name of its own.")
            other.text = self._free(other.outer, other.root)
            self.every = {one.full: one for one in self.every.values()}
        name = Name(outer, text, where, from_user=True, stable=True)
        self.every[name.full] = name
        return name

    def _derived(self, outer: Name | None, word: str, where: Where, *, stable: bool) -> Name:
        text = self._free(outer, word)
        name = Name(outer, text, where, from_user=False, stable=stable, root=word)
        self.every[name.full] = name
        return name

    def _free(self, outer: Name | None, word: str) -> str:
        text, full = word, _inside(outer, word)
        while _inside(outer, text) in self.every:
            self.derived[full] += 1
            text = f"{word}_{self.derived[full] + 1}"
        return text


def composed(operator: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operator that adds several steps: its unnamed steps are named after its `name=`.

    One step, or its loop, must have that name itself. So a changed flow finds the state of every step.
    """

    @wraps(operator)
    def wrapper(*args: P.args, **options: P.kwargs) -> R:
        name: Any = options.get("name")
        # of a stream, which has no `index`, the search for what is like it would take long
        arguments: list[Any] = [
            one if hasattr(type(one), "stage") else getattr(one, "index", one)
            for one in (*args, *options.values())
        ]
        # of the type: the attributes of a DataFrame are its columns
        stream = next((one for one in arguments if hasattr(type(one), "stage")), None)
        if name is None or stream is None:
            return operator(*args, **options)
        with stream.flow.graph.parts(stream.stage.scope, name):
            return operator(*args, **options)

    return wrapper
