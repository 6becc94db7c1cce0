"""Small changes of code, made from the syntax tree: which a file has, and how one gets into a process.

A mutation changes one place in one function: a sign, a comparison, a condition, a number, a call that is left
out. It is named by its file, function, kind, and its number among those of the function and kind. The old
code stays behind a condition that is never true, so that a function keeps its free variables.
"""

from __future__ import annotations

import ast
import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "timely_spark"
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

_SIGNS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
_SYNCED = ("sync", "flush")
#: what only words depend on, for people
_WORDS = {"__repr__", "__str__", "_repr_html_", "describe", "explain", "hint", "text"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change; `line` is where, `words` what becomes of what."""

    file: str
    function: str
    kind: str
    number: int
    line: int
    words: str
    #: the first lines of the functions around it, the outermost first, as their code objects have them
    within: tuple[int, ...]

    @property
    def name(self) -> str:
        """What it is called in lists: stays if other functions are changed."""
        return f"{self.file}::{self.function}::{self.kind}::{self.number}"

    def __str__(self) -> str:
        return f"{self.name}  (line {self.line}: {self.words})"


@dataclass(slots=True)
class _Place:
    """A field of a node, or an item of a list in it, and what comes there instead."""

    parent: ast.AST
    field: str
    index: int | None
    kind: str
    new: ast.AST

    @property
    def old(self) -> ast.AST:
        held = getattr(self.parent, self.field)
        found: ast.AST = held if self.index is None else held[self.index]
        return found

    def change(self) -> None:
        old, new = self.old, self.new
        if isinstance(old, ast.stmt) and isinstance(new, ast.stmt):
            kept = ast.If(test=ast.Constant(value=True), body=[new], orelse=[old])
        elif isinstance(old, ast.expr) and isinstance(new, ast.expr):
            kept = ast.IfExp(test=ast.Constant(value=True), body=new, orelse=old)  # type: ignore[assignment]
        else:
            kept = new  # type: ignore[assignment]
        ast.copy_location(kept, old)
        if self.index is None:
            setattr(self.parent, self.field, kept)
        else:
            getattr(self.parent, self.field)[self.index] = kept


def first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Where its code object says that it begins."""
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:  # noqa: C901, PLR0912 - a case per kind
    """What may come instead of a node: the kind of change, and the new node."""
    match node:
        case ast.Expr(value=ast.Call(func=func)):
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            yield ("skip a sync" if any(one in name for one in _SYNCED) else "leave out a call"), ast.Pass()
        case ast.AugAssign():
            yield "drop a delta", ast.Pass()
            if type(node.op) in _SIGNS:
                yield "flip a sign", ast.AugAssign(node.target, _SIGNS[type(node.op)](), node.value)
        case ast.Delete():
            yield "leave out a removal", ast.Pass()
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "leave out an assignment", ast.Pass()
        case ast.If():
            yield "leave out a branch", ast.If(ast.Constant(value=False), node.body, node.orelse)
            yield "always take a branch", ast.If(ast.Constant(value=True), node.body, node.orelse)
        case ast.Continue():
            yield "end a loop", ast.Break()
        case ast.Break():
            yield "go on in a loop", ast.Continue()
        case ast.BinOp() if type(node.op) in _SIGNS:
            yield "flip a sign", ast.BinOp(node.left, _SIGNS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.USub()):
            yield "flip a sign", node.operand
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            yield "drop a not", node.operand
        case ast.Compare(ops=[op, *rest]):
            yield (
                "change a comparison",
                ast.Compare(node.left, [_COMPARED[type(op)](), *rest], node.comparators),
            )
        case ast.BoolOp(values=[first, *_]):
            yield "forget a condition", first
            yield "forget the first condition", node.values[-1]
        case ast.IfExp():
            yield "always take a value", node.body
            yield "never take a value", node.orelse
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED and node.args:
            keywords = [] if _CALLED[name] == "list" else node.keywords
            yield "change a function", ast.Call(ast.Name(_CALLED[name], ast.Load()), node.args, keywords)
        case ast.comprehension(ifs=[_, *_]):
            yield "forget a filter", ast.comprehension(node.target, node.iter, [], node.is_async)
        case ast.Constant(value=bool()):
            yield "turn a truth", ast.Constant(value=not node.value)
        case ast.Constant(value=int()):
            yield "change a number", ast.Constant(value=node.value + 1)


def _ignored(node: ast.AST) -> bool:
    """Whether only people see it, or it states what holds anyway."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.arguments() | ast.pattern():
            return True
        case ast.keyword(arg="strict") | ast.Expr(value=ast.Constant()):
            return True  # zip's assertion; words
        case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings" | "log" | "LOG" | "logger"))):
            return True
        case ast.Call(keywords=[*_]) if any(word.arg in {"hint", "where"} for word in node.keywords):
            return True  # an error's text
        case ast.FunctionDef(name=name):
            return name in _WORDS
    return False


def _places(tree: ast.Module) -> Iterator[tuple[_Place, list[str], tuple[int, ...]]]:
    def walk(
        node: ast.AST, path: list[str], within: tuple[int, ...]
    ) -> Iterator[tuple[_Place, list[str], tuple[int, ...]]]:
        for field, held in ast.iter_fields(node):
            if field in {"annotation", "returns", "decorator_list", "type_comment"}:
                continue
            for index, child in enumerate(held) if isinstance(held, list) else [(None, held)]:
                if not isinstance(child, ast.AST) or _ignored(child):
                    continue
                if within:
                    for kind, new in _changes(child):
                        yield _Place(node, field, index, kind, new), path, within
                if isinstance(child, FUNCTION):
                    inner = (*within, first_line(child))
                    body = child.body[bool(ast.get_docstring(child)) :]
                    if (
                        len(body) > 1
                        and isinstance(child.returns, ast.Constant)
                        and child.returns.value is None
                    ):
                        early = _Place(
                            child, "body", len(child.body) - len(body), "return early", ast.Return()
                        )
                        yield early, [*path, child.name], inner
                    yield from walk(child, [*path, child.name], inner)
                else:
                    name = [*path, child.name] if isinstance(child, ast.ClassDef) else path
                    yield from walk(child, name, within)

    yield from walk(tree, [], ())


@cache
def mutations_of(source: str, file: str) -> tuple[Mutation, ...]:
    """All mutations of a file, in the order of the source."""
    seen, found = Counter[tuple[str, str]](), []
    for place, path, within in _places(ast.parse(source)):
        function = ".".join(path)
        seen[function, place.kind] += 1
        number = seen[function, place.kind]
        words = f"{_short(place.old)}  ->  {_short(place.new)}"
        line = getattr(place.old, "lineno", within[-1])
        found.append(Mutation(file, function, place.kind, number, line, words, within))
    return tuple(found)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 70 else f"{text[:67]}..."


def mutated(source: str, mutation: Mutation) -> ast.Module:
    """The file's tree with the change in it."""
    tree, seen = ast.parse(source), 0
    for place, path, _ in _places(tree):
        if (".".join(path), place.kind) == (mutation.function, mutation.kind):
            seen += 1
            if seen == mutation.number:
                place.change()
                return ast.fix_missing_locations(tree)
    raise LookupError(mutation)


def put(source: str, mutation: Mutation, path: str) -> int:
    """Change the functions of a file that garbage collection knows; returns how many there were."""
    new = {one.co_firstlineno: one for one in _codes(compile(mutated(source, mutation), path, "exec"))}
    found = 0
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == path:
            line = one.__code__.co_firstlineno
            if line in mutation.within and one.__code__.co_name == new[line].co_name:
                one.__code__ = new[line]
                found += 1
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The functions' codes in a code; of those on one line, the definition comes last and is kept."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)
            if not one.co_name.startswith("<"):
                yield one
