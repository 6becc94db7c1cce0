"""Mutations that change nothing a user can see, each with its reason; `tests/mutate.py` leaves them out."""

from __future__ import annotations

#: by the mutation's name
EQUIVALENT = {
    "differential/reducers.py::Extreme.numbered::change a comparison::1": "consolidated rows have no zeros",
    "differential/reducers.py::Extreme.numbered::change a comparison::2": "consolidated rows have no zeros",
    "differential/reducers.py::Extreme.numbered::change a comparison::3": "consolidated rows have no zeros",
    "differential/arranged.py::Arrange.repartition::change a number::1": (
        "sequence numbers need only ascend, and no change has the first one"
    ),
    "differential/trace.py::consolidation.compact::change a number::1": (
        "what all readers have counts as one, whatever its number"
    ),
    "differential/working.py::RowsByKey.of::change a number::1": "there is room for one more key",
    "differential/working.py::RowsByKey.of::forget the first condition::1": (
        "without columns no key has rows, more slowly"
    ),
    "graphs/components.py::_trimmed.trim::turn a truth::1": "nodes that are distinct are counted once more",
    "graphs/forest.py::Forest._with_edge::forget the first condition::1": (
        "what follows finds nothing for no nodes, more slowly"
    ),
    "graphs/components.py::least_reaching::turn a truth::2": "what is fed back is consolidated twice",
    "progress/reachability.py::Reachability.order::leave out a branch::1": (
        "what follows gives the same tuple, more slowly"
    ),
    "runtime/query/driver.py::Driver._stay::change a number::2": "how fast the pauses of idle looks grow",
    "runtime/sources/messages.py::Json.parse::turn a truth::1": "the lines are one block, of one thread",
    "runtime/sources/skipped.py::_version::change a function::1": "skipped versions have no order",
    "runtime/sources/wakeup.py::Wakeup.__init__::change a function::1": ("folders are watched in any order"),
    "runtime/sources/wakeup.py::Wakeup.wait::change a function::1": "how often folders are compared",
    "runtime/sources/wakeup.py::Wakeup.wait::never take a value::1": "how often nothing is compared",
    "runtime/storage/files.py::Files.write_part::forget the first condition::1": (
        "no local file has the path of a remote one, whose versions are the cache's"
    ),
    "runtime/storage/log.py::RoundLog.prune::always take a value::1": (
        "a file that no other batch has is not there to be removed"
    ),
    "runtime/storage/published.py::Published.compact::change a number::1": (
        "without a snapshot, every epoch comes after -2 as after -1, and no hold is before"
    ),
    "state/arrangement.py::Arrangement.__init__::forget a condition::1": "a batch compares hashes and key",
    "state/arrangement.py::Arrangement.__init__::forget the first condition::1": (
        "a batch compares hashes and key"
    ),
    "state/arrangement.py::Arrangement.find::change a comparison::2": (
        "a few hashes are put in order for one lane too"
    ),
    "state/arrangement.py::Arrangement._cut::always take a branch::2": "a batch without rows is not a batch",
    "state/codec.py::unpack_parts::leave out a branch::1": "the first part is found to end too late",
    "state/grouping.py::group::always take a branch::2": "keys of equal exact hashes are compared, and equal",
    "times/frontier.py::MutableAntichain.update_iter::leave out a branch::3": (
        "without a change the lists below are empty"
    ),
    "times/product.py::Summary.__post_init__::drop a not::2": (
        "the identity is added like any other summary, more slowly"
    ),
    "times/product.py::Summary.followed_by::change a number::1": (
        "the default is compared with 0 only, of times without coordinates"
    ),
    "worker/hot_keys.py::frequent::change a number::1": "any seed will do that is always the same",
    "worker/notify.py::Notificator._capability_before::go on in a loop::1": (
        "epochs ascend, and the later ones are left out one by one"
    ),
    "worker/received.py::Received.__init__::never take a value::1": (
        "where a header is given, others are decoded and not used"
    ),
}
