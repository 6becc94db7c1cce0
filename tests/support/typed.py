"""A type checker sees the operators with their arguments: `make lint` checks this file, and nothing runs it.

An ignored error that is not there is an error too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import assert_type

    import timely_spark as ts

    x = ts.Dataflow("typed").input("x", "k string, n long")
    assert_type(x.max("n", keys="k").collection().count(keys="k").changes().flow, ts.Dataflow)
    x.max("n", key="k")  # type: ignore[call-arg]
    x.nothing()  # type: ignore[attr-defined]
    x.aggregate(total=("sum", "n"), rows="count")
    x.aggregate(total=("summ", "n"))  # type: ignore[arg-type]
    x.group_by("k").aggregate({"total": ("summ", "n")})  # type: ignore[dict-item]
    x.join(x, on="k", how="outerr")  # type: ignore[arg-type]
    ts.all_reduce(x, "n", op="summ")  # type: ignore[arg-type]
