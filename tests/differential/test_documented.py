"""What a user holds explains itself, and names in the package mean one thing."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import timely_spark as ts
from timely_spark import differential
from timely_spark.differential.arranged import index_of
from timely_spark.errors import StateError
from timely_spark.graph import Vertex

METHODS = {
    f"{handle.__name__}.{name}": method
    for handle in (ts.Collection, differential.CollectionVariable)
    for name, method in vars(handle).items()
    if inspect.isfunction(method) and not name.startswith("_")
}
METHODS["Stream.collection"] = ts.Stream.collection


@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_collections_explains_itself(method: str) -> None:
    words = METHODS[method].__doc__ or ""

    assert ">>> " in words, "has no runnable example"
    assert "Raises:" in words or method == "Collection.negate", "says nothing of mistakes"
    assert "**Columns:**" in words or method in {"Collection.check", "Collection.together"}


def test_no_name_of_the_package_hides_a_module() -> None:
    for module in pkgutil.iter_modules(differential.__path__, f"{differential.__name__}."):
        assert getattr(differential, module.name.rpartition(".")[2]) is importlib.import_module(module.name)


@pytest.mark.parametrize("found", [None, Vertex()])
def test_a_reader_without_its_arrangement_is_an_error(found: Vertex | None) -> None:
    class Context:
        def feeds(self, edge: int) -> Vertex | None:
            return found

    context: Any = Context()
    with pytest.raises(StateError, match=rf"(?s)input 1 .*{type(found).__name__}.*Hint: "):
        index_of(context, 1)
