"""Mutations that change nothing a user can see, each with its reason; `tests/mutate.py` leaves them out."""

from __future__ import annotations

#: by the mutation's name
EQUIVALENT = {
    "coordinator/coordinator.py::Coordinator._deliverable_workers::forget a filter::2": (
        "a worker without a notification delivers none"
    ),
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
    "graphs/pairs.py::_unordered::change a comparison::2": (
        "how many rows out of order have all rows sorted; they are in order either way"
    ),
    "operators/monotone.py::_best::forget a condition::1": "of one record the best is itself, more slowly",
    "operators/top_k.py::top_k::forget a filter::1": "records in order by a column are so by it again",
    "operators/retractions.py::_value::forget the first condition::1": "what has no column is a count",
    "operators/retractions.py::retractions_in::forget a condition::3": "no column is called None",
    "graphs/components.py::least_reaching::turn a truth::2": "what is fed back is consolidated twice",
    "progress/reachability.py::Reachability.order::leave out a branch::1": (
        "what follows gives the same tuple, more slowly"
    ),
    "runtime/query/driver.py::Driver._stay::change a number::2": "how fast the pauses of idle looks grow",
    "runtime/query/flow_reader.py::FlowReader._new::always take a value::1": (
        "a manifest is read before anything is new"
    ),
    "runtime/query/flow_reader.py::FlowReader._wait::forget the first condition::1": (
        "how long an idle flow pauses"
    ),
    "runtime/sinks/delta.py::DeltaSink._properties::never take a value::1": (
        "without a folder deltalake reads nothing either, and Spark is asked"
    ),
    "runtime/sinks/pending_outputs.py::PendingOutputs._merged::flip a sign::2": "how often files are merged",
    "runtime/sources/bad_row.py::_fits.fit::turn a truth::1": "values are validated again after the cast",
    "runtime/sources/bad_row.py::_own_rows::forget a filter::2": (
        "the first bad row of the file is named, which is as bad"
    ),
    "runtime/sources/file_readers.py::ReplayReader._since::leave out an assignment::1": (
        "holds are renewed more often"
    ),
    "runtime/sources/journal.py::FileCounts.of::change a number::1": (
        "any number below 0 means that there is no batch"
    ),
    "runtime/sources/messages.py::Json.parse::turn a truth::1": "the lines are one block, of one thread",
    "runtime/sources/reader.py::Reader.latest_offset::leave out an assignment::1": (
        "the same number is written again"
    ),
    "runtime/sources/skipped.py::_version::change a function::1": "skipped versions have no order",
    "runtime/sources/wakeup.py::Wakeup.__init__::change a function::1": "folders are watched in any order",
    "runtime/sources/wakeup.py::Wakeup.wait::change a function::1": "how often folders are compared",
    "runtime/sources/wakeup.py::Wakeup.wait::never take a value::1": "how often nothing is compared",
    "runtime/storage/cache.py::Cache.put::always take a value::1": "the same bytes, in memory and not mapped",
    "runtime/storage/entries.py::Position.after::forget a condition::1": (
        "an entry that advances has an epoch"
    ),
    "runtime/storage/entries.py::close_source::turn a truth::1": "its kind says that it closes the input",
    "runtime/storage/files.py::Files.write_part::forget the first condition::1": (
        "no local file has the path of a remote one, whose versions are the cache's"
    ),
    "runtime/storage/files.py::Files.write_part::leave out a call::2": "the part is verified once more",
    "runtime/storage/log.py::RoundLog.prune::always take a value::1": (
        "a file that no other batch has is not there to be removed"
    ),
    "runtime/storage/log.py::RoundLog.prune::change a number::1": (
        "how many manifests are removed in one call"
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
    "state/arrangement.py::Arrangement.at_most::turn a truth::1": (
        "hashes are put in their order, more slowly"
    ),
    "state/codec.py::unpack_parts::leave out a branch::1": "the first part is found to end too late",
    "state/grouping.py::group::always take a branch::2": "keys of equal exact hashes are compared, and equal",
    "state/sums.py::limbs_of::change a comparison::1": (
        "numbers of 18 digits have four limbs, the upper ones 0"
    ),
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
    "worker/context.py::CallContext.send::always take a branch::1": (
        "the time of a call is a time, and a check takes a call of a function"
    ),
    "worker/notify.py::Notificator._capability_before::go on in a loop::1": (
        "epochs ascend, and the later ones are left out one by one"
    ),
    "worker/received.py::Received.__init__::never take a value::1": (
        "where a header is given, others are decoded and not used"
    ),
    "state/codec.py::Codec.__init__::leave out an assignment::3": "each write and read sets it",
}
