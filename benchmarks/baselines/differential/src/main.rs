//! Connected components by differential-dataflow: `components TRACE EPOCHS [timely's arguments]`.
//!
//! Labels go from neighbour to neighbour, the least one stays: its own `propagate_at`, which lets small labels
//! in before large ones. A worker reads its share of each epoch's file.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Instant;

use components::share;
use differential_dataflow::algorithms::graphs::propagate::propagate_at;
use differential_dataflow::input::Input;
use timely::dataflow::operators::probe::Handle;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let trace = arguments.next().expect("a trace");
    let epochs: usize = arguments.next().and_then(|n| n.parse().ok()).expect("a number of epochs");
    let components = Arc::new(AtomicI64::new(0));
    let checksum = Arc::new(AtomicI64::new(0));

    timely::execute_from_args(arguments, move |worker| {
        let (index, peers) = (worker.index(), worker.peers());
        let mut probe = Handle::new();
        let mut input = worker.dataflow(|scope| {
            let (input, edges) = scope.new_collection::<(u32, u32), isize>();
            let both = edges.clone().concat(edges.map(|(src, dst)| (dst, src)));
            let nodes = both.clone().map(|(node, _)| node).distinct().map(|node| (node, node));
            let (components, checksum) = (components.clone(), checksum.clone());
            propagate_at(both, nodes, |label| u64::from(*label))
                .inspect(move |((node, component), _, diff)| {
                    let (node, component, diff) = (i64::from(*node), i64::from(*component), *diff as i64);
                    components.fetch_add(diff * i64::from(node == component), SeqCst);
                    checksum.fetch_add(diff * (node + 1) * (component + 1), SeqCst);
                })
                .probe_with(&mut probe);
            input
        });

        for epoch in 0..epochs {
            let changes = std::fs::read(format!("{trace}/{epoch:04}.bin")).expect("an epoch of the trace");
            let began = Instant::now();
            for [src, dst, diff] in share(&changes, index, peers) {
                input.update((src as u32, dst as u32), diff as isize);
            }
            input.advance_to(epoch + 1);
            input.flush();
            while probe.less_than(input.time()) {
                worker.step_or_park(None);
            }
            if index == 0 {
                println!(
                    r#"{{"seconds": {}, "components": {}, "checksum": {}}}"#,
                    began.elapsed().as_secs_f64(),
                    components.load(SeqCst),
                    checksum.load(SeqCst)
                );
            }
        }
    })
    .unwrap();
}
