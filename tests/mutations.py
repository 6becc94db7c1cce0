"""Small changes that some test must notice: (file, the tests, [(text, what stands there instead), ...])."""

from __future__ import annotations

_ORDERS = ["tests/times/test_product.py", "tests/times/test_lexicographic.py", "tests/laws/test_orders.py"]
_PROGRESS = ["tests/progress", "tests/laws/test_frontiers.py"]
_NOTIFY = [
    "tests/worker/test_notify.py",
    "tests/coordinator/test_coordinator.py",
    "tests/worker/test_round.py",
    "tests/laws/test_rounds.py",
]
_DRIVER = ["tests/runtime/test_driver.py", "tests/runtime/test_feedback.py"]
_OWN = [
    f"tests/times/test_own.py::test_{name}"
    for name in (
        "a_lawful_kind_is_taken",
        "a_law_that_is_broken_is_named_when_the_flow_is_made",
        "what_counts_epochs_is_refused",
    )
]
_DEFINED = "tests/times/test_own.py::test_operators_at_times_of_two_coordinates"
_SCOPES = ["tests/times/test_refined.py", "tests/operators/test_scopes.py"]
_LOG = ["tests/spark/test_log.py", *_DRIVER]
_PIPE = [
    f"tests/operators/test_pipe.py::test_{name}"
    for name in (
        "a_program_that_is_killed_in_the_middle_is_started_again",
        "notifications_and_state_are_those_of_a_vertex_whatever_crashes",
        "one_program_serves_a_worker_for_many_batches",
        "state_that_only_the_program_reads_is_not_rescaled",
        "several_inputs_and_outputs_and_a_loop",
    )
]

GROUPS: list[tuple[str, list[str], list[tuple[str, str]]]] = [
    # -- simulation ------------------------------------------------------------------------------------------
    (
        "schedules.py",
        ["tests/laws/test_default_schedules.py"],
        [
            ("[1, 1, 2, 5, 100] if self.rare else [1, 100]", "[1, 1, 2, 5, 100] if self.rare else [1]"),
            ("if not self._pairs_inputs or len(inputs) < 2 or", "if len(inputs) >= 0 or"),
        ],
    ),
    (
        "compiler/plan.py",
        ["tests/laws/test_default_schedules.py"],
        [("for source in self.inputs if self.clocked else ():", "for source in self.inputs:")],
    ),
    (
        "testing.py",
        ["tests/laws/test_default_schedules.py"],
        [("if last:  # closing", "if False:  # closing")],
    ),
    (
        "operators/exactly_once.py",
        ["tests/operators/test_exactly_once.py"],
        [("            except BaseException:", "            except Exception:")],
    ),
    (
        "progress/tracker.py",
        ["tests/progress/test_tracker.py"],
        [("while self._oldest and self._oldest[0] not in", "if self._oldest and self._oldest[0] not in")],
    ),
    (
        "worker/notify.py",
        ["tests/worker/test_notify.py"],
        [("return self.open, self.present, self.header.late", "return self.open, self.present")],
    ),
    (
        "libraries/supersteps.py",
        [
            "tests/libraries/test_pregel.py::test_a_node_that_halted_before_sends_nothing_and_one_that_halts_sends_for_the_last_time"
        ],
        [
            ("nodes.where(pc.is_valid(pc.field(HALTED)))", "nodes"),
            ("nodes.where(pc.is_valid(pc.field(HALTED)))", "nodes.where(~pc.field(HALTED))"),
        ],
    ),
    # -- times -----------------------------------------------------------------------------------------------
    (
        "times/refined.py",
        _SCOPES,
        [
            (
                "return bool(a <= b if type(a) is int else a.less_equal(b))",
                "return bool(type(a) is not int or a <= b)",
            ),
            (
                "return max(a, b) if type(a) is int else a.join(b)",
                "return max(a, b) if type(a) is int else a",
            ),
            ("time[i] if i < kept else inner.least()", "inner.least()"),
            ("return replace(self, limits=limits", "return replace(self, inner=(), limits=limits"),
            ("return next((law for law, holds in laws.items() if not holds), None)", "return None"),
        ],
    ),
    (
        "operators/loop.py",
        _SCOPES,
        [
            ("decode([*outer, first + values[0]])", "decode([*outer, first])"),
            ("        if not time.less_equal(entered):", "        if False:"),
        ],
    ),
    ("state/keys.py", _SCOPES, [("table = table.take(pa.array(self.order))", "table = table")]),
    (
        "operators/loop.py",
        ["tests/operators/test_scopes.py", "tests/operators/test_mistakes.py"],
        [
            ("if column.null_count or (numbered and", "if column.null_count or (False and"),
            ("if column.null_count or (numbered and", "if (numbered and"),
            ("self._check(at)\n", "pass\n"),
        ],
    ),
    (
        "operators/custom.py",
        ["tests/operators/test_summaries.py"],
        [
            ("lawful = path is None or identity.less_equal(path)", "lawful = True"),
            ("if given and (isinstance(vertex, Stateless) or tuple(vertex.initial)):", "if False:"),
            ("is not None and min(pair) >= 0", "is not None"),
        ],
    ),
    (
        "graph/loop_context.py",
        _SCOPES,
        [("return any(scope.inner is None for scope in self.path[1:])", "return self.parent is not None")],
    ),
    (
        "times/product.py",
        _ORDERS,
        [
            ("return all(map(le, self, other))", "return self[0] <= other[0] and self[-1] <= other[-1]"),
            (
                "return tuple.__new__(type(self), map(max, self, other))",
                "return tuple.__new__(type(self), max(self, other))",
            ),
            (
                "return tuple.__new__(type(self), map(min, self, other))",
                "return tuple.__new__(type(self), min(self, other))",
            ),
            ("if any(map(gt, time, self.limits)):", "if any(map(gt, time[:1], self.limits)):"),
            ("if min(limits, default=0) < 0:", "if min(limits, default=0) < -1:"),
            ("carried = tuple(map(add, self.appended, other.increments[kept:]))", "carried = self.appended"),
            (
                "limits = list(map(min, self.limits, map(sub, other.limits, self.increments)))",
                "limits = list(map(min, self.limits, other.limits))",
            ),
            (
                "return self._passes(other) and all(excess <= 0 for excess in self._excess(other))",
                "return self._passes(other) and all(excess < 0 for excess in self._excess(other))",
            ),
            ("yield a - b + (other.limits[i] if other_kept <= i < kept else 0)", "yield a - b"),
            ("limit=MAX if limit is None else limit - 1)", "limit=MAX if limit is None else limit)"),
            ("(0 if i - 1 in counters else value", "(0 if i in counters else value"),
            ("[*(MAX - more for more in increments)", "[*(MAX for more in increments)"),
        ],
    ),
    (
        "times/product.py",
        ["timely_spark/times/product.py", "tests/worker/test_states.py", "tests/operators/test_monotone.py"],
        [("(max(time[0], since - 1), *time[1:])", "(since - 1, *time[1:])")],
    ),
    (
        "times/lexicographic.py",
        _ORDERS,
        [
            ("return self[0] <= other[0] and self[1:] <= other[1:]", "return tuple(self) <= tuple(other)"),
            (
                "return self[0] <= other[0] and self[1:] <= other[1:]",
                "return all(a <= b for a, b in zip(self, other))",
            ),
            (
                "return self[0] <= other[0] and self[1:] <= other[1:]",
                "return self[0] <= other[0] and self[1:3] <= other[1:3]",
            ),
            ("*max(self[1:], other[1:])", "*map(max, self[1:], other[1:])"),
            ("*min(self[1:], other[1:])", "*map(min, self[1:], other[1:])"),
            ("if i > 0 and excess < 0:", "if excess < 0:"),
            ("if limit is not None and depth > 1:", "if limit is not None and depth > 2:"),
        ],
    ),
    (
        "times/frontier.py",
        ["tests/times/test_frontier.py", "tests/laws/test_orders.py"],
        [
            (
                "(*(old for old in self._elements if not element.less_equal(old)), element)",
                "(*self._elements, element)",
            ),
            ("any(element != time and element.less_equal(time) for", "any(element.less_equal(time) for"),
            ("if old <= 0 < counts.get(time, 0)]", "if old == 0 < counts.get(time, 0)]"),
            ("if any(old > 0 >= counts.get(time, 0) and", "if any(old > 0 > counts.get(time, 0) and"),
            ("return all(map(self.less_equal, other))", "return any(map(self.less_equal, other))"),
            ("was.setdefault(time, old)", "was[time] = old"),
            ("return len(self) == len(other) and all(", "return all("),
        ],
    ),
    (
        "times/laws.py",
        _OWN,
        [
            ("if a.less_equal(b) != (m <= n):", "if a.less_equal(b) and m > n:"),
            ("len(key) != 1 + depth", "len(key) < 1 + depth"),
            ("return times in (PRODUCT, LEXICOGRAPHIC)", "return True"),
        ],
    ),
    # -- progress --------------------------------------------------------------------------------------------
    (
        "progress/reachability.py",
        _PROGRESS,
        [
            ("crossed or int(edge.exchange), summary)", "int(edge.exchange), summary)"),
            (
                "return self._places[source][0] <= self._places[target][0]",
                "return self._places[source][0] < self._places[target][0]",
            ),
            ("if len(advances) <= coordinate:", "if len(advances) < coordinate:"),
            ("if not advances[coordinate]:", "if advances[coordinate]:"),
            ("(path, edge.summary) if forwards else (edge.summary, path)", "(path, edge.summary)"),
            ("either.setdefault(location, Antichain()).extend(paths)", "either.setdefault(location, paths)"),
            ("together += pair", "together += pair[::-1]"),
        ],
    ),
    (
        "progress/tracker.py",
        _PROGRESS,
        [
            ("n * (layer or int(edge.exchange))", "n * int(edge.exchange)"),
            ("new is not None and not old.less_equal(new):", "new is not None and old == new:"),
            ("self._count(location + 2 * self.reachability.n, changes)", "self._count(location, changes)"),
            ("if layer == 1:", "if layer == 2:"),
            ("self._pending[entry] += n", "self._pending[entry] = n"),
            ("if node < 2 * self.reachability.n:", "if True:"),
            (
                "return _frontier(self._implied, location + self.reachability.n)",
                "return _frontier(self._implied, location)",
            ),
        ],
    ),
    (
        "progress/subgraph.py",
        _PROGRESS,
        [
            ("self._tracker.update(work)", "pass"),
            ("[*self.reachability.edges, *outside]", "self.reachability.edges"),
            ("self._consumed[port][time] += n", "pass"),
            ("(target, at, n) for at, n in arrived", "(target, at, 1) for at, n in arrived"),
            ("(self._woken | self._polled) - {OUTSIDE}", "self._woken - {OUTSIDE}"),
            ("time, -n) for time, n in changes", "time, -1) for time, n in changes"),
            (
                "(self._unreported.add if progress.unreported else self._unreported.discard)(child)",
                "self._unreported.discard(child)",
            ),
            ("or self._tracker.oldest() is not None", ""),
            ("gone = [(time, -1) for time in before if time not in now.elements]", "gone = []"),
            ("if self._parent is not None:", "if False:"),
            ("counts[time] += n", "counts[time] = n"),
            ("if child == OUTSIDE or location >= self._source(child, 0):", "if child == OUTSIDE:"),
        ],
    ),
    (
        "progress/scopes.py",
        _PROGRESS,
        [
            ("summaries or {}).get(i, [", "{}).get(i, ["),
            ("route.output), identity(scope)", "0), identity(scope)"),
            ("[route.target], route.input", "[route.target], 0"),
            ("so_far, inner.outputs = identity(to), inner.outputs + 1", "inner.outputs += 1"),
        ],
    ),
    (
        "progress/operate.py",
        _PROGRESS,
        [
            ("counts[time] += n\n", "counts[time] = n\n"),
            (
                "return self.summaries, counted(self._internal)",
                "return self.summaries, [[] for _ in self._internal]",
            ),
        ],
    ),
    # -- worker ----------------------------------------------------------------------------------------------
    (
        "worker/notify.py",
        _NOTIFY,
        [
            (
                "return (batch_id + 1, batch_id if first else None)",
                "return (batch_id, batch_id if first else None)",
            ),
            ("zip(reachable, epochs, strict=True)", "zip(reachable[::-1], epochs, strict=True)"),
            (
                "if any(time.less_equal(pending.guarantee) for time in blockers[pending.node]):",
                "if any(time == pending.guarantee for time in blockers[pending.node]):",
            ),
            ("if epoch > guarantee.epoch:", "if epoch >= guarantee.epoch:"),
            ("if capability not in held.counts:", "if capability in held.counts:"),
            (
                "if time is not None and time.less_equal(guarantee):",
                "if time is not None and time == guarantee:",
            ),
            ("self._blocked.setdefault(pending.node, []).append(entry)", "pass"),
        ],
    ),
    (
        "coordinator/round_result.py",
        ["tests/coordinator/test_local_rounds.py"],
        [
            ("released=[*self.released, *later.released]", "released=later.released"),
            ("outputs=pa.concat_tables([self.outputs, later.outputs])", "outputs=later.outputs"),
            ("(0 if name in _OPEN else self.stats.get(name, 0))", "0"),
        ],
    ),
    (
        "coordinator/accumulated.py",
        ["tests/coordinator/test_accumulated.py"],
        [
            ("left=sum(part.left for part in parts)", "left=max(part.left for part in parts)"),
            ("left=sum(report.left > 0 for", "left=sum(report.left for"),
            ("max(counter, reached.get(loop, 0))", "counter"),
            ("if counts.far or counts.dropped", "if counts.far"),
            ("if counts.far or counts.dropped", "if counts.dropped"),
            ("(sink, epoch) for part in parts for", "(sink, epoch) for part in parts[:1] for"),
            ("loops=[counted for part in parts for", "loops=[counted for part in parts[:1] for"),
            ("fed.merge(Convergence.decode(counts.fed))", "fed = Convergence.decode(counts.fed)"),
            ("loads=[load for part in parts for load in part.loads]", "loads=[]"),
            ("late=_totals(part.late for part in parts)", "late={}"),
            ("in sums.items() if n]", "in sums.items()]"),
            ("[time, 0])[1] += n", "[time, 0])[1] = n"),
        ],
    ),
    (
        "coordinator/runs.py",
        ["tests/coordinator/test_runs.py"],
        [
            ("min(place + 2, len(self._times))", "min(place + 1, len(self._times))"),
            ("(self._times[at - 1] if at else [])", "self._times[at - 1]"),
        ],
    ),
    (
        "coordinator/coordinator.py",
        [
            "tests/coordinator/test_coordinator.py",
            "tests/coordinator/test_local_rounds.py",
            "tests/worker/test_round.py",
            "tests/laws/test_rounds.py",
        ],
        [
            ("until = min(until, time.epoch)", "until = min(until, time.epoch + 1)"),
            (
                "(self.unfinished.add if report.left else self.unfinished.discard)(worker)",
                "self.unfinished.discard(worker)",
            ),
            ("not (begun is not None and guarantee.epoch > begun)", "True"),
            ("complete=not awake and all(", "complete=all("),
            ("self.pending_count += n", "self.pending_count += 1"),
        ],
    ),
    (
        "worker/round.py",
        ["tests/worker/test_round.py", "tests/coordinator/test_coordinator.py", "tests/laws/test_rounds.py"],
        [
            ("deltas.subtract(self.queued_before)", "pass"),
            ("deltas.subtract(received.pointstamps)", "pass"),
            (
                "deltas[self.plan.nodes[pending.node].holds(pending.input), pending.capability] += n",
                "deltas[self.plan.nodes[pending.node].holds(pending.input), pending.capability] += 1",
            ),
            ("deltas[node.lands(channel.input), time] += 1", "deltas[node.lands(channel.input), time] += 2"),
        ],
    ),
    (
        "worker/received.py",
        ["tests/worker/test_round.py", "tests/worker/test_epochs.py", "tests/laws/test_rounds.py"],
        [
            ("if late == (channel.index in source.late):", "if late != (channel.index in source.late):"),
            (
                "self.pointstamps[node.lands(channel.input), time] += 1",
                "self.pointstamps[node.lands(channel.input), time] += 2",
            ),
        ],
    ),
    (
        "worker/outbox.py",
        ["tests/worker/test_outbox.py"],
        [
            ("own = parts.pop(self.worker, None)", "own = parts.get(self.worker)"),
            ("_join(theirs or times)", "_join(times)"),
            ("to = again", "pass"),
            ("if mine.all():", "if mine.any():"),
            ("if same not in encoded:", "if True:"),
            (
                "if rows:\n                yield channel.index",
                "if True:\n                yield channel.index",
            ),
            ("if table.num_rows else {}", ""),
            ("if not mine.any():", "if False:"),
            ("node.ignored_counters) if combines else time", "node.ignored_counters)"),
            ("others = ~mine", "others = mine | ~mine"),
        ],
    ),
    (
        "worker/convergence.py",
        ["tests/worker/test_convergence.py"],
        [
            ("wide, last = max(own, width), max(own_last, last)", "wide, last = own, max(own_last, last)"),
            ("max(own, width), max(own_last, last)", "max(own, width), last"),
            ("counts[at] = counts.get(at, 0) + records", "counts[at] = records"),
            ("merged[at] = merged.get(at, 0) + records", "merged[at] = records"),
            ("if len(self._counts) > PAIRS:", "if False:"),
            ("first = max(counts)", "first = min(counts)"),
        ],
    ),
    (
        "worker/context.py",
        ["tests/worker/test_round.py", "tests/operators/test_route.py", "tests/differential/test_since.py"],
        [
            (
                "if self.capability is None or not self.capability.less_equal(time):",
                "if self.capability is None:",
            ),
            (
                "least: int = min([self.invocation.time.epoch, *epochs])",
                "least: int = max([self.invocation.time.epoch, *epochs])",
            ),
            ("or not time.less_equal(capability)", "or False"),
        ],
    ),
    (
        "state/keys.py",
        ["tests/state/test_keys.py"],
        [
            ("limit = 1 << (kind.bit_width - 1)", "limit = 1 << kind.bit_width"),
            ("if -limit <= low and high < limit:", "if -limit <= low and high <= limit:"),
            ("if -limit <= low and high < limit:", "if -limit < low and high < limit:"),
            ("mix(result * _PRIME ^ hashed)", "mix(result ^ hashed)"),
            ("high, low = np.maximum(a, b), np.minimum(a, b)", "high, low = a, b"),
            ("np.where(np.isnan(values), np.nan, values)", "values"),
            ("pc.and_(a.is_null(), b.is_null())", "a.is_null()"),
            ("if bounds[w] < bounds[w + 1]", "if bounds[w] + 1 < bounds[w + 1]"),
        ],
    ),
    (
        "state/arrangement.py",
        ["tests/state/test_arrangement.py", "timely_spark/state/arrangement.py"],
        [
            (
                'else part.hashes.searchsorted(asked[some] | rest, "right")',
                'else part.hashes.searchsorted(asked[some], "right")',
            ),
            (
                'order = np.argsort(h, kind="stable")  # a few sorted runs: linear',
                "order = np.argsort(h[::-1])",
            ),
            ("if not equal.all():", "if False:"),
            ("if not (sure and part.exact(keys)):", "if not sure:"),
            ("if not (sure and part.exact(keys)):", "if not part.exact(keys):"),
            (
                "if low < high:\n                lane.append",
                "if low + 1 < high:\n                lane.append",
            ),
            ("both = within >> _HALF", "both = within & _REST"),
        ],
    ),
    (
        "state/batch.py",
        ["tests/state/test_batch.py"],
        [
            ("self._exact[keys] = keys[0] == self.key", "self._exact[keys] = True"),
            ("starts = starts[low : high + 1] - starts[low]", "starts = starts[low : high + 1]"),
            ("self.rows.slice(low, high - low)", "self.rows.slice(low)"),
            ("self.rows.slice(starts[low], starts[high] - starts[low])", "self.rows.slice(starts[low])"),
            ("and (unmix(hashed) == _values(column)).all()", ""),
            ("distinct = int(starts[-1]) == len(hashed)", "distinct = False"),
            ('(row, "right")) - 1', "(row)) - 1"),
            (
                "distinct = self.distinct or len(run_starts(hashed)) == len(hashed)",
                "distinct = self.distinct",
            ),
            ("else self.starts[which].astype(np.int64)", "else which"),
            ("schema = self.schema if columns is None else", "schema = self.schema if True else"),
            ("< 2 * len(hashed) < _MOST and flat_rows", "< 2 * len(hashed) < _MOST"),
            ("return taken.astype(self._kinds[column], copy=False)", "return taken"),
            ("and not column.null_count", ""),
            ("middle = (len(self) - 1) // 2", "middle = 0"),
        ],
    ),
    (
        "state/codes.py",
        ["tests/state/test_codes.py"],
        [
            ("if values.null_count:\n        found", "if False:\n        found"),
            (
                "return words(values).view(np.int64)",
                "return values.to_numpy(zero_copy_only=False).view(np.int64)",
            ),
            ("_U(low % (1 << _WIDTH))", "_U(0)"),
            ("elif bits + low <= _WIDTH:", "elif bits <= _WIDTH:"),
            ("order = np.lexsort(numbers[::-1])", "order = np.lexsort(numbers)"),
        ],
    ),
    (
        "state/codec.py",
        ["tests/state/test_codec.py"],
        [
            (
                'return {"timedelta": [value.days, value.seconds, value.microseconds]}',
                'return {"timedelta": [value.days, value.seconds]}',
            ),
            ("return self.times.decode(content)", "return tuple(content)"),
        ],
    ),
    (
        "coordinator/migrate.py",
        ["tests/coordinator/test_migrate.py"],
        [
            (
                "self.rescaled = old != new or self.differences.hot_keys",
                "self.rescaled = False",
            ),
            (
                'self.continuing = set(before["nodes"]) & set(plan.by_name) - set(self.differences.changed)',
                'self.continuing = set(before["nodes"]) & set(plan.by_name)',
            ),
            (
                "if time is not None and time.epoch < self.open_epoch]:",
                "if time is not None and time.epoch > self.open_epoch]:",
            ),
            ("if tracker.less_equal(node.arrives, time):", "if True:"),
        ],
    ),
    (
        "worker/context.py",
        ["tests/operators/test_summaries.py"],
        [("if any(from_ is not None and from_.less_equal(time) for from_ in least):", "if least:")],
    ),
    (
        "worker/notify.py",
        ["tests/operators/test_summaries.py"],
        [("if (one := replace(pending, input=i)) in self._numbers]", "if (one := pending) and not i]")],
    ),
    (
        "compiler/compile.py",
        ["tests/operators/test_summaries.py"],
        [
            (
                "for at, held in n.ports for to in (n.arrives, held)",
                "for at, held in n.ports for to in (held,)",
            )
        ],
    ),
    (
        "compiler/compile.py",
        ["tests/compiler/test_plan.py", "tests/laws/test_schedules.py", "tests/test_counts.py"],
        [
            ("if need.copies or not self._partitioned(edge.source, need):", "if need.broadcast:"),
            (
                "for i, scope in enumerate(stage.scope.path[1:]) if scope not in counted",
                "for i, scope in enumerate(stage.scope.path[1:])",
            ),
            ("counted.update(stage.scope.path[1:])", "counted.add(stage.scope)"),
            ("self._require(self.into[stage][0], before)", "self._require(self.into[stage][0], need)"),
        ],
    ),
    (
        "coordinator/local_rounds.py",
        ["tests/coordinator/test_local_rounds.py", "tests/coordinator/test_parallel_rounds.py"],
        [
            ("coordinator.host(share.hosts)", "pass"),
            ("wire.only(stay, Failure), added_up", "added_up"),
            ("return worker % self.processes == self.rank", "return True"),
            ('result.stats["rounds"] < self.rounds', 'result.stats["rounds"] <= self.rounds'),
            ('result.stats["bytes_in_flight"] <= self.exchanged', "True"),
            ('result.stats.get("bytes", 0) <= self.delivered', "True"),
        ],
    ),
    # -- operators -------------------------------------------------------------------------------------------
    (
        "operators/aggregate.py",
        ["tests/operators/test_aggregate.py", _DEFINED],
        [
            (
                "self.interesting.setdefault(later, []).append(some)",
                "self.interesting.setdefault(time, []).append(some)",
            ),
            ("rows = rows.filter(pa.array(counts))", "pass"),
            ("return int(time.epoch) + 1 if outermost", "return int(time.epoch) + 5 if outermost"),
            ('("id", "ascending"), ("value", "ascending")', '("id", "ascending"), ("value", "descending")'),
            ("partial[out] = ones if values is None else", "partial[out] = ones if True else"),
            ("pa.decimal128(min(38, kind.precision + 10), kind.scale)", "kind"),
            ("if len(changed) > 1 or not once:", "if len(changed) > 1:"),
            ("if total.num_rows > batch.num_rows:", "if False:"),
            ('(kind, column) != ("count", None)', 'kind != "count"'),
            ("pa.types.is_string, pa.types.is_binary)", "pa.types.is_string, pa.types.is_floating)"),
            ("if len(self.keys) != 1 or any(", "if any("),
            ("return self.combine(counts)", "return counts"),
            ("if 8 * pc.count_distinct(sample).as_py() > 7 * len(sample):", "if True:"),
        ],
    ),
    (
        "operators/join.py",
        ["tests/operators/test_join.py", "tests/operators/test_expire.py", _DEFINED],
        [
            (
                "times.joins(time, self.pairs(edge, mine, found))",
                "[(time, self.pairs(edge, mine, found))]",
            ),
            (
                "np.abs(found.times(1)[:, 0] - time.epoch) <= self.expire",
                "np.abs(found.times(1)[:, 0] - time.epoch) < self.expire",
            ),
            ("each.expire(self._context.since() - self.expire)", "each.expire(self._context.since())"),
            ("if batch.column(key).null_count:", "if False:"),
        ],
    ),
    (
        "operators/monotone.py",
        ["tests/operators/test_monotone.py", _DEFINED],
        [
            ("beaten = times.less_equal(at)", "beaten = np.zeros(len(probe), np.bool_)"),
            ("rows = order[np.minimum.reduceat(", "rows = order[np.maximum.reduceat("),
            (
                "pc.greater_equal if monotone.greatest else pc.less_equal",
                "pc.greater if monotone.greatest else pc.less",
            ),
            ("keep = pc.and_(keep, pc.invert(pc.fill_null(pc.is_nan(value), fill_value=True)))", "pass"),
            ("improves[probe[beaten]] = False", "improves[probe] = False"),
            ('direction = "descending" if monotone.greatest else "ascending"', 'direction = "ascending"'),
        ],
    ),
    (
        "operators/expire.py",
        ["tests/operators/test_expire.py"],
        [
            (
                "last = last[epochs[last] >= time.epoch - self.expire]",
                "last = last[epochs[last] > time.epoch - self.expire]",
            ),
            (
                "self.state.expire(time.epoch + 1 - self.expire)",
                "self.state.expire(time.epoch + 2 - self.expire)",
            ),
            ("self.retracted = time.epoch - self.after", "self.retracted = time.epoch - self.after - 1"),
            ("pc.negate_checked(rows.column(self.diff))", "rows.column(self.diff)"),
        ],
    ),
    (
        "streams.py",
        ["tests/times/test_own.py::test_what_counts_epochs_is_refused"],
        [("if epochs and not only_epochs(scope.times):", "if False:")],
    ),
    (
        "streams.py",
        ["tests/operators/test_scopes.py"],
        [
            ("source.handle.check = vertex.check_sent", "pass"),
            (
                "for one in self.graph_scope.path[1:] if one.inner is None), None)) is not None:",
                "for one in ()), None)) is not None:",
            ),
            ("inside = self.enter(source, at=at, name=name)", "inside = self.enter(source, name=name)"),
            ("if at is None and self.graph_scope.parent is None:", "if at is None:"),
        ],
    ),
    (
        "operators/output_vertex.py",
        [
            "tests/operators/test_output_vertex.py",
            "tests/operators/test_monotone.py",
            "tests/operators/test_finalise.py",
        ],
        [
            ("& (epoch >= time.epoch)", "& (epoch > time.epoch)"),
            ("rank[1:] < best_so_far[:-1]", "rank[1:] <= best_so_far[:-1]"),
        ],
    ),
    (
        "state/buffering.py",
        ["tests/operators/test_custom.py"],
        [
            (
                "pa.concat_tables(of or [schema.empty_table()])",
                "pa.concat_tables(of[:1] or [schema.empty_table()])",
            ),
        ],
    ),
    (
        "operators/custom.py",
        ["tests/operators/test_custom.py"],
        [
            ("self.function(edge, time, batch) if self.sides", "self.function(0, time, batch) if self.sides"),
        ],
    ),
    (
        "operators/route.py",
        ["tests/operators/test_route.py"],
        [("times.delay(stream.stage.scope.depth, number)", "times.delay(stream.stage.scope.depth, 1)")],
    ),
    (
        "operators/pipe.py",
        _PIPE,
        [
            ("        self._calls.append((head, body))\n", ""),
            ("        if program.holds == self._holds:\n", "        if program.holds:\n"),
            ("                if not error.ended or not left:", "                if True:"),
            ('        if any(not state["table"] for state in states):', "        if False:"),
            ("            self._finalizer.detach()\n", ""),
        ],
    ),
    # -- differential and graphs -----------------------------------------------------------------------------
    (
        "differential/trace.py",
        [
            "tests/differential/test_histories.py",
            "tests/differential/test_cases.py",
            "tests/differential/test_law.py",
        ],
        [
            ("return compaction(since + 1, PRODUCT", "return compaction(since + 2, PRODUCT"),
        ],
    ),
    (
        "differential/trace.py",
        ["tests/differential/test_errors.py"],
        [
            ("max_abs(ours) * max_abs(theirs) >= MOST", "max_abs(ours) >= MOST"),
            ("max_abs(counts) * len(counts) < MOST", "max_abs(counts) < MOST"),
        ],
    ),
    (
        "state/history.py",
        ["tests/state/test_history.py"],
        [
            ("joined = np.maximum(times,", "joined = np.minimum(times,"),
            ("<= np.array(time, np.int64)).all(axis=1)", "<= np.array(time, np.int64)).any(axis=1)"),
            ("np.maximum(epochs_of(table), since - 1)", "np.maximum(epochs_of(table), since)"),
            ("joined = [value.join(time) for value in self.values]", "joined = [time for _ in self.values]"),
            ("needed = [] if exact(table, labels) else labels", "needed = []"),
        ],
    ),
    (
        "differential/joins.py",
        [
            "tests/differential/test_cases.py",
            "tests/differential/test_law.py",
            "tests/differential/test_skew.py",
        ],
        [
            (
                "unmet = found.numbers(SEQUENCE) < numbers(mine, SEQUENCE)",
                "unmet = found.numbers(SEQUENCE) <= numbers(mine, SEQUENCE)",
            ),
            ("for sides in stored[1:]:", "for sides in stored:"),
            ("if hot is None or spread == 0 else None", ""),
            ("copies=() if hot is None else (1 - spread, *hot.hot)", "copies=()"),
        ],
    ),
    (
        "coordinator/hot_keys.py",
        ["tests/coordinator/test_hot_keys.py"],
        [
            ("(workers - len(of)) * MANY", "0"),
            ("or most.share < 0.5", ""),
            ("most.records < _FACTOR * share", "False"),
        ],
    ),
    (
        "operators/asof.py",
        ["tests/operators/test_asof.py"],
        [("^ np.uint64(1 << 63)", ""), ("| (gap < distance)", "")],
    ),
    (
        "differential/skew.py",
        ["tests/differential/test_skew.py"],
        [
            ("others = batch.filter(pa.array(~hot)) if hot.any() else batch", "others = batch"),
            (
                "hashes(rows, self.skew.spread) % np.uint64(SALTS)",
                "hashes(rows, self.keys) % np.uint64(SALTS)",
            ),
        ],
    ),
    (
        "differential/reduce.py",
        ["tests/differential/test_reduce.py", "tests/laws/test_default_schedules.py"],
        [
            ("if self.shared or self._work is None or", "if self._work is None or"),
            ("[changes.filter(pa.array(~irrelevant))]", "[changes]"),
            ("many = self._records.at_most(each, keys) > _MANY", "many = groups.sizes < 0"),
            ("[*keys, *self.interesting.pop(time, [])], None)", "keys, None)"),
            ("self.interesting.pop(time, [])], None)", "self.interesting.pop(time, [])], added)"),
            ("self._plain = False", "pass"),
        ],
    ),
    (
        "differential/working.py",
        ["tests/differential/test_working.py"],
        [
            ("self._meet(coded[0][~inside], times[~inside])", "pass"),
            ("first = first[runs([which[first], *joined[first].T], len(first)).firsts]", "pass"),
            ("[of, times[first, -1], *joined[first].T]", "[of, times[first, -1] + 1, *joined[first].T]"),
        ],
    ),
    (
        "coordinator/coordinator.py",
        ["tests/worker/test_loops.py"],
        [("self.loops.forget(oldest)", "pass")],
    ),
    (
        "coordinator/loops.py",
        ["tests/worker/test_loops.py"],
        [("if key[2] >= oldest}", "if key[2] > oldest}")],
    ),
    (
        "differential/reducers.py",
        [
            "tests/differential/test_cases.py",
            "tests/differential/test_values.py",
            "tests/differential/test_law.py",
            "tests/differential/test_reduce.py",
            "timely_spark/differential/reductions.py",
        ],
        [
            ("(np.maximum if self.greatest else np.minimum).reduceat", "np.minimum.reduceat"),
            ("replaced(inputs, DIFF, np.minimum(counts, left))", "replaced(inputs, DIFF, counts)"),
            ("return counts > 0\n", "return counts != 0\n"),
            ("_true(equal) & (numbers(changes, DIFF) > 0)", "_true(equal)"),
        ],
    ),
    (
        "operators/retractions.py",
        ["tests/operators/test_expire.py"],
        [
            ("if column is None or column in known", "if column is None"),
            ("one if column is None else", "one if True else"),
        ],
    ),
    (
        "differential/consolidation.py",
        ["tests/differential/test_transient.py"],
        [
            ("if collection.lasting is None:", "if True:"),
            ("(diffs > 0).all() or (diffs < 0).all()", "True"),
        ],
    ),
    (
        "differential/linear.py",
        ["tests/differential/test_cases.py"],
        [("{DIFF: pc.negate(pc.field(DIFF))}", "{DIFF: pc.field(DIFF)}")],
    ),
    (
        "graphs/triangles.py",
        ["tests/graphs/test_triangles.py"],
        [('graph.where(differ(graph, "src", "dst"))', "graph")],
    ),
    (
        "graphs/clustering.py",
        ["tests/graphs/test_clustering.py"],
        [('closed.select(node="first", n="to_high")', 'closed.select(node="first", n="to_first")')],
    ),
    (
        "graphs/labels.py",
        ["tests/graphs/test_labels.py"],
        [("np.maximum.reduceat(counts, of.starts)", "np.minimum.reduceat(counts, of.starts)")],
    ),
    (
        "differential/prefixes.py",
        ["tests/differential/test_wcoj.py"],
        [
            ("return epoch if self.before else epoch + 1", "return epoch + 1"),
            ("fewer = found < numbers(rows, FEWEST)", "fewer = found > numbers(rows, FEWEST)"),
            ("consolidation(since - 1)", "consolidation(since)"),
        ],
    ),
    (
        "graphs/cores.py",
        ["tests/graphs/test_cores.py"],
        [("np.minimum(values, total - before)", "np.minimum(values, total)")],
    ),
    (
        "graphs/greedy.py",
        ["tests/graphs/test_greedy.py"],
        [
            ("np.where(out, _OUT, _IN)", "np.where(out, _IN, _OUT)"),
            ("- of.starts[of.ids] - 1", "- of.starts[of.ids]"),
        ],
    ),
    (
        "graphs/spanning.py",
        ["tests/graphs/test_forest.py", "tests/graphs/test_components.py"],
        [
            ("stays = (pick[onto] == by) & (has < onto)", "stays = (pick[onto] == by)"),
            ("for depth in range(1, most + 1):", "for depth in range(1, most):"),
            ("new = self.level[x] == depth - 1", "new = self.level[x] != NONE"),
            ("once = (x < y) | (self.level[y] != NONE)", "once = x < y"),
        ],
    ),
    (
        "graphs/forest.py",
        ["tests/graphs/test_forest.py", "tests/graphs/test_components.py"],
        [
            (
                "changed = (before > 0) != (before + diff > 0)",
                "changed = (before > 0) != (before + diff >= 0)",
            ),
            ("needed = (rank != _REMOVED) | (total != 0)", "needed = rank == rank"),
            ("needed = (rank != _REMOVED) | (total != 0)", "needed = rank != _REMOVED"),
        ],
    ),
    # -- the runtime, without a JVM --------------------------------------------------------------------------
    (
        "runtime/query/driver.py",
        _DRIVER,
        [
            ("if last is None or last.manifest.batch != batch_id - 1:", "if last is None:"),
            ('return {**self.__dict__, "_last": None}', "return dict(self.__dict__)"),
            ("if manifest.plan != self.context.plan.fingerprint:", "if False:"),
            ("log.check_owner()\n        pending", "pending"),
            ("log.check_owner()  # Spark commits", "pass  # Spark commits"),
            ("*sorted(read - sent)]", "*sorted(sent - read)]"),
            (
                "manifest = log.prune(manifest, keep=self.context.keep, seconds=self.context.keep_seconds)",
                "pass",
            ),
            (
                "manifest = log.prune(manifest, keep=self.context.keep, seconds=self.context.keep_seconds)",
                "manifest = log.prune(manifest, keep=0)",
            ),
            ("last, self._last = self._last, None", "last = self._last"),
            ('if output.release == "arrival":', "if True:"),
            ('if name in by_name and by_name[name].release == "epoch":', "if name in by_name:"),
            ("if result.complete:", "if False:"),
            ('"runnable": result.rows.num_rows > 0', '"runnable": True'),
            ("bound=asdict(rounds.bound)", "bound=asdict(Bound(rounds=1))"),
        ],
    ),
    (
        "runtime/query/rounds.py",
        [*_DRIVER, "tests/runtime/test_peers.py"],
        [
            ("            states.enter(rows)\n", "            pass\n"),
            ("released=[*result.released, *last.released]", "released=last.released"),
        ],
    ),
    (
        "runtime/query/feedback.py",
        _DRIVER,
        [
            ('if end["round"] != start["round"]:', "if True:"),
            ('first = start["inputs"].get(name, -1) + 1', 'first = start["inputs"].get(name, -1)'),
            (
                "if first <= last and name in self.context.inputs:",
                "if first < last and name in self.context.inputs:",
            ),
            ("if len(self._committed) <= self.context.keep:", "if len(self._committed) < self.context.keep:"),
            ("range(self._oldest[name], last)", "range(self._oldest[name], last + 1)"),
            ("if manifest is not None and manifest.runnable:", "if manifest is not None:"),
            (
                "self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)",
                "self._pause = max(2 * self._pause, SHORTEST_PAUSE)",
            ),
            (
                "end = self._question(start) if self._available_now else self._wait(start)",
                "end = self._wait(start)",
            ),
            ("> MAX_BYTES and number > first):", "> MAX_BYTES):"),
            ('"inputs": start["inputs"] | entries', '"inputs": entries'),
            ("if self.context.inputs and (end := self._end(start)) != start:", "if False:"),
        ],
    ),
    (
        "runtime/storage/log.py",
        _LOG,
        [
            ('pc.is_in(rows.column("worker"), running)', 'pc.is_valid(rows.column("worker"))'),
            ("(whole := self.read_whole(batch - 1))", "(whole := self.read_whole(batch))"),
            ("while self.has(hint + 1):", "while False:"),
            (
                "until = min(max(manifest.batch - keep, manifest.kept_from), manifest.kept_from + 4)",
                "until = min(max(manifest.batch - keep + 2, manifest.kept_from), manifest.kept_from + 4)",
            ),
            ("for name in (*gone, *(", "for name in (*gone[1:], *("),
            ("if self.term is not None and batch >= self.first:", "if self.term is not None:"),
            ("default=self.term) > self.term:", "default=self.term) > self.term + 1:"),
        ],
    ),
    (
        "runtime/sinks/pending_outputs.py",
        _DRIVER,
        [
            ("payloads += _parts(self._file(file), output.name, epoch)", "pass"),
            ("self.taken.add((output.name, epoch))", "pass"),
            ("while waiting and rows_of(waiting[-1]) < 2 * pending.num_rows:", "while False:"),
            ("rounds=self.before.rounds + manifest.rounds", "rounds=manifest.rounds"),
            ("kept_from=self.before.kept_from", "kept_from=self.batch"),
        ],
    ),
    (
        "runtime/storage/states.py",
        ["tests/runtime/test_states.py", *_DRIVER],
        [
            ("self.gone += sorted(old.files - state.files)", "pass"),
            ("self.gone += sorted(old.files - state.files)", "self.gone += sorted(old.files)"),
            ("return cls(dict(wire.read(rows, State)))", "return cls()"),
        ],
    ),
    (
        "runtime/storage/entries.py",
        [
            "tests/spark/test_inputs.py",
            "tests/runtime/test_taken.py",
            "tests/runtime/test_arguments.py",
            *_DRIVER,
        ],
        [
            ("self.first = numbers[-1] + 1 if numbers else 0", "self.first = numbers[-1] if numbers else 0"),
            (
                "_file(self.name, position.sent - 1), table, durable=True, new=True)",
                "_file(self.name, position.sent - 1), table, durable=True)",
            ),
        ],
    ),
    (
        "runtime/sources/journal.py",
        ["tests/runtime/sources/test_reader.py", "tests/runtime/sources/test_account.py"],
        [
            ("if self._merged and first == self._merged[-1].first:", "if False:"),
            ("if first == self.first:", "if True:"),
            ("if batch not in batches:", "if False:"),
            ("if batches:\n            self._sync()", "if False:\n            self._sync()"),
            ("for name in set(names) - kept:", "for name in ():"),
            ("table, new=True)", "table)"),
            ("counts\n        self._sync()", "counts"),
            ("self._durable.result()", "pass"),
            ("while self._merged and", "while False and"),
            ("[*gone, before.name]", "gone"),
            ("self._merged[place] = merged._replace(paths=table.num_rows)", "pass"),
            ("self._name(merged.name), table, durable=True)", "self._name(merged.name), table)"),
            ("FileCounts.of(self._files, self._source, self.last)", "FileCounts()"),
        ],
    ),
    (
        "runtime/sources/listing.py",
        ["tests/runtime/sources/test_listing.py"],
        [
            ("if first == name else []", ""),
            ("elif self.files.setdefault(found.path, found) is not found:", "elif False:"),
            ("path = self.top + path[len(self.real) :]", "pass"),
            ("if found.folders:", "if found.folders and not found.links:"),
            ("if is_visible(entry.name):", "if True:"),
        ],
    ),
    (
        "runtime/sources/arrivals.py",
        ["tests/runtime/sources/test_listing.py", "tests/runtime/sources/test_arrivals.py"],
        [
            ("and file.modified % 10**9:", ":"),
            ("elif identity is not None and file.id in links:", "elif False:"),
            ("elif identity is not None and identity in self._identities", "elif False"),
            ("not in {None, identity}:", "not in {None, identity} and False:"),
        ],
    ),
    (
        "runtime/sources/reader.py",
        ["tests/runtime/sources/test_reader.py"],
        [
            ("if number < self._journal.last:", "if False:"),
            ("if number > self._journal.last:", "if False:"),
            ("self._journal.wait()", "pass"),
            ("del self._journal, self._unread", "pass"),
            ("        self.context.log.check_owner()\n        try:", "        try:"),
            ('merge(end["files"] - self.context.keep)', 'merge(end["files"])'),
            ("most_files = None if unlimited else", "most_files ="),
            ("if not files and not self._available_now and", "if not files and"),
            ("(_IDLE - 1) * (ended - began)", "0"),
        ],
    ),
    (
        "runtime/query/feedback.py",
        ["tests/runtime/test_feedback.py"],
        [
            ("if arrived:\n            self._pause = 0.0", "pass"),
            ("return self._folders != before", "return False"),
            ("_changed_at(folder) for folder in self.context.watched]", "0]"),
            ("self._newest, self._pause = newest, 0.0", "self._newest = newest"),
        ],
    ),
    (
        "runtime/sinks/delta_append.py",
        ["tests/runtime/test_delta_append.py"],
        [
            ("if last is None or last < version:", "if last is None or last != version:"),
            (" or not owner.items() <= table.metadata().configuration.items()", ""),
            ("and not metadata.partition_columns", ""),
            ('and not any(key.startswith("delta.") for key in metadata.configuration)', ""),
            ("and '\"nullable\":false' not in schema", ""),
            ('and \'"metadata":{"\' not in schema', ""),
            ("if [field.name for field in table.schema().fields] != records.schema.names:", "if False:"),
            ("features <= _FEATURES", "True"),
        ],
    ),
    (
        "runtime/sinks/delta.py",
        ["tests/spark/test_tables.py"],
        [
            ("            self._check_own(session)  # each time", "            pass  # each time"),
            ("        self._check_own(session)\n        same", "        same"),
            ("if found is None or not self._own.items() <= found.items():", "if found is None:"),
            ("if found is None or not self._own.items() <= found.items():", "if found != self._own:"),
            ("if found is None and self._exists(session):", "if found is None:"),
            ("if tries == 1 or not interrupted:", "if not interrupted or tries == 2:"),
            ("or _CHANGED in str(error)", ""),
        ],
    ),
    (
        "runtime/sinks/delta_history.py",
        ["tests/runtime/test_delta_history.py"],
        [
            ("while len(mine) < 2", "while len(mine) < 1"),
            ("bool(mine) or (delivered and version >= 0)", "delivered"),
            ("(delivered and version >= 0)", "version >= 0"),
            ("if not mine and delivered and version >= 0:", "if delivered and version >= 0:"),
            ("if not mine and delivered and version >= 0:", "if not mine and delivered:"),
            (
                "not self._read_on() and self._commit(max(self._whole)) is None",
                "not self._read_on() and False",
            ),
            ("not self._delivered or self._is_whole_after", "self._is_whole_after"),
            ("                self._whole.clear()\n", ""),
            ("                self._delivered = True\n", ""),
            ("self._whole.get(int(version), False)", "self._whole.get(int(version), True)"),
            ("if self._whole[version] and undone ==", "if undone =="),
            ("return self._is_back(commit)", "return False"),
            ("return self._is_back(commit)", "return True"),
            ("undone ^= _files(later)", "undone |= _files(later)"),
            ('json.dumps(file.get("deletionVector"), sort_keys=True)', '""'),
            ('in {None, "", "[]"}', "is None"),
            ('.get("isDynamicPartitionOverwrite") not in {True, "true"}', '.get("") is None'),
            ('one["remove"].get("dataChange", True) for', "True for"),
            ("and everything and removes", "and everything"),
            ("return max(self._listed(), default=None)", "return None"),
        ],
    ),
    (
        "runtime/storage/spark_log.py",
        ["tests/chaos/test_spark_log.py", "tests/spark/test_log.py"],
        [
            ("is not None and text != expected:", "is not None and False:"),
            ("if self.text(batch) == self.text(batch - 1):", "if False:"),
            ("if len(self.ends(batch)) != len(self.ends(batch - 1)):", "if False:"),
            ("if any(new < end for new, end in", "if any(new > end + 9 for new, end in"),
            ('[(now["round"], old["round"]), *entries]', '[(now["round"], old["round"])]'),
            ("if not commits and last > 0:", "if False:"),
            ("[-1, *written, *commits])) > last", "[-1])) > last"),
            ("for batch in range(max(0, last - 1), last + 1):", "for batch in range(last, last + 1):"),
            ("or not rest:", "and not rest:"),
            ("            self._check_listed(source, end)", "            pass"),
        ],
    ),
    (
        "runtime/storage/stores.py",
        ["tests/chaos/test_spark_log.py"],
        [("if not stat.S_ISREG(", "if stat.S_ISDIR(")],
    ),
    (
        "runtime/sinks/delivery.py",
        ["tests/runtime/test_survivors.py"],
        [("(place << 40)", "place")],
    ),
    (
        "runtime/sinks/delta.py",
        ["tests/runtime/test_survivors.py"],
        [("merge.whenMatchedUpdate(newer, values).when", "merge.whenMatchedUpdate(None, values).when")],
    ),
    (
        "runtime/sinks/folder.py",
        ["tests/runtime/test_survivors.py"],
        [("sink.getvalue(), durable=True)", "sink.getvalue())")],
    ),
    (
        "runtime/sinks/pending_outputs.py",
        ["tests/runtime/test_survivors.py"],
        [
            (" - files_of(pending)\n", "\n"),
            (
                "_files_in(self.before.unreleased) - _files_in(self.unreleased)",
                "_files_in(self.before.unreleased)",
            ),
        ],
    ),
    (
        "runtime/query/driver.py",
        ["tests/runtime/test_survivors.py"],
        [("*sorted(read - sent)]", "*sorted(read)]")],
    ),
    (
        "coordinator/coordinator.py",
        ["tests/worker/test_epochs.py"],
        [
            (
                "advanced.setdefault(source.name, self.last_epoch + 1)",
                "advanced.setdefault(source.name, self.last_epoch)",
            ),
            ("self.late_epochs[name] = self.last_epoch + 1", "self.late_epochs[name] = self.last_epoch"),
        ],
    ),
    (
        "runtime/storage/stores.py",
        ["tests/runtime/test_survivors.py"],
        [
            (
                "os.fsync(handle)\n        finally:\n            os.close(handle)\n        _sync(",
                "pass\n        finally:\n            os.close(handle)\n        _sync(",
            )
        ],
    ),
    (
        "worker/record.py",
        ["tests/operators/test_call.py"],
        [('with StorageFailed.owning(f"record={folder!r}: {file}"):', "if True:")],
    ),
    # -- for users' tests ------------------------------------------------------------------------------------
    (
        "testing.py",
        ["tests/laws/test_crashes.py", "timely_spark/testing.py", "tests/test_counts.py"],
        [
            ("if before != now:", "if False:"),
            ("if current is None or at is None or at < current:", "if current is None or at is None:"),
            ("self.redelivered += 1", "pass"),
        ],
    ),
]
