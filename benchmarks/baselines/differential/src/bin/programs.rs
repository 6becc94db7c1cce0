//! The programs of `benchmarks.engine` by differential-dataflow: `programs NAME TRACE EPOCHS [timely's arguments]`.
//!
//! Each is the program that ours runs, as its own library has it where it has it. An answer is the sum of the
//! `mark`s of its rows. A worker reads its share of each epoch's file, which does not count as time.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Instant;

use components::share;
use differential_dataflow::algorithms::graphs::{bfs::bfs, propagate::propagate_at};
use differential_dataflow::input::Input;
use differential_dataflow::operators::iterate::Variable;
use differential_dataflow::operators::Iterate;
use differential_dataflow::{AsCollection, VecCollection};
use timely::dataflow::operators::probe::Handle;
use timely::dataflow::operators::vec::Filter;
use timely::order::Product;

type Node = u32;
type Rows<'s, D> = VecCollection<'s, usize, D>;

const STEPS: u32 = 5;
const CORE: isize = 5;
const LANDMARKS: Node = 4;

fn mark(node: Node, value: i64) -> i64 {
    odd(node).wrapping_mul(value + 1)
}

fn odd(node: Node) -> i64 {
    2 * i64::from(node) + 1
}

fn magnitude(number: u64) -> u64 {
    u64::from(number.max(1).ilog2())
}

fn ends<'s>(edges: &Rows<'s, (Node, Node)>) -> Rows<'s, Node> {
    edges.clone().flat_map(|(src, dst)| [src, dst]).distinct()
}

fn turned<'s, T>(edges: VecCollection<'s, T, (Node, Node)>) -> VecCollection<'s, T, (Node, Node)>
where
    T: timely::progress::Timestamp + Clone,
{
    edges.map(|(src, dst)| (dst, src))
}

fn sssp<'s>(edges: Rows<'s, (Node, Node, u32)>, roots: Rows<'s, Node>) -> Rows<'s, (Node, u64)> {
    let links = edges.map(|(src, dst, weight)| (src, (dst, u64::from(weight)))).arrange_by_key();
    let start = roots.map(|node| (node, 0));
    start.clone().iterate(|scope, near| {
        near.join_core(links.enter(scope), |_, far, (dst, weight)| Some((*dst, far + weight)))
            .concat(start.enter(scope))
            .reduce(|_, far, least| least.push((*far[0].0, 1)))
    })
}

fn labels<'s>(edges: Rows<'s, (Node, Node)>) -> Rows<'s, (Node, Node)> {
    let links = edges.clone().concat(turned(edges.clone())).arrange_by_key();
    let own = ends(&edges).map(|node| (node, node));
    own.clone().iterate(|scope, near| {
        near.join_core(links.enter(scope), |_, label, dst| Some((*dst, *label)))
            .concat(own.enter(scope))
            .reduce(|_, labels, least| least.push((*labels[0].0, 1)))
    })
}

/// Ranks are multiplicities.
fn pagerank<'s>(edges: Rows<'s, (Node, Node)>) -> Rows<'s, Node> {
    let nodes = ends(&edges);
    let degrees = edges.clone().map(|(src, _)| src).count();
    let outer = edges.scope();
    outer.iterative::<u32, _, _>(|inner| {
        let (edges, nodes, degrees) = (edges.enter(inner), nodes.enter(inner), degrees.enter(inner));
        let start = nodes.clone().explode(|node| Some((node, 1_000_000)));
        let base = nodes.explode(|node| Some((node, 150_000)));
        let (variable, ranks) = Variable::new_from(start, Product::new(Default::default(), 1));
        let shares = degrees
            .semijoin(ranks)
            .threshold(|(_, degree), rank| (17 * rank) / (20 * degree))
            .map(|(node, _)| node);
        let pushed = edges
            .semijoin(shares)
            .map(|(_, dst)| dst)
            .concat(base)
            .consolidate()
            .inner
            .filter(|(_, time, _)| time.inner < STEPS)
            .as_collection();
        variable.set(pushed.clone());
        pushed.leave(outer)
    })
}

fn strongly<'s>(edges: Rows<'s, (Node, Node)>) -> Rows<'s, (Node, Node)> {
    let edges = edges.distinct();
    let outer = edges.scope();
    let nodes = ends(&edges).map(|node| (node, node));
    outer.iterative::<u64, _, _>(|inner| {
        let (nodes, edges) = (nodes.enter(inner), edges.enter(inner));
        let (variable, cyclic) = Variable::new_from(edges, Product::new(Default::default(), 1));
        let first = propagate_at(cyclic.clone(), nodes.clone(), |label| u64::from(*label));
        let last = propagate_at(turned(cyclic.clone()), nodes, |label| u64::from(*label));
        let both = first.join(last.clone()).arrange_by_key();
        let alike = cyclic
            .arrange_by_key()
            .join_core(both.clone(), |src, dst, labels| Some((*dst, (*src, *labels))))
            .arrange_by_key()
            .join_core(both, |dst, (src, labels), others| (labels == others).then_some((*src, *dst)));
        variable.set(alike);
        last.leave(outer)
    })
}

/// By node of the core its degree there.
fn core<'s>(edges: Rows<'s, (Node, Node)>) -> Rows<'s, (Node, isize)> {
    let both = edges.clone().concat(turned(edges));
    let links = both.clone().arrange_by_key();
    both.iterate(|scope, left| {
        let many = left.map(|(src, _)| src).count().filter(|(_, degree)| *degree >= CORE);
        let many = many.map(|(node, _)| node).arrange_by_self();
        links
            .enter(scope)
            .join_core(many.clone(), |src, dst, ()| Some((*dst, *src)))
            .arrange_by_key()
            .join_core(many, |dst, src, ()| Some((*src, *dst)))
            .consolidate()
    })
    .map(|(src, _)| src)
    .count()
}

fn triangles<'s>(edges: Rows<'s, (Node, Node)>) -> Rows<'s, (Node, Node, Node)> {
    let links = edges.filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b))).distinct();
    let sizes = links
        .clone()
        .flat_map(|(a, b)| [a, b])
        .count()
        .map(|(node, degree)| (node, magnitude(degree as u64)))
        .consolidate()
        .arrange_by_key();
    let pairs = links
        .clone()
        .arrange_by_key()
        .join_core(sizes.clone(), |a, b, size| Some((*b, (*a, *size))))
        .arrange_by_key()
        .join_core(sizes, |b, (a, first), second| Some(if first <= second { (*a, *b) } else { (*b, *a) }))
        .arrange_by_key();
    pairs
        .clone()
        .join_core(pairs, |low, x, y| (x < y).then_some(((*x, *y), *low)))
        .semijoin(links)
        .map(|((x, y), low)| (low, x, y))
}
/// By node and landmark their distance, in both directions.
fn landmarks<'s>(edges: Rows<'s, (Node, Node)>) -> Rows<'s, ((Node, Node), u32)> {
    let first = edges.clone().map(|(src, _)| src).filter(|node| *node < LANDMARKS).distinct();
    let links = edges.clone().concat(turned(edges)).arrange_by_key();
    let start = first.map(|node| ((node, node), 0));
    start.clone().iterate(|scope, near| {
        near.map(|((node, landmark), far)| (node, (landmark, far)))
            .join_core(links.enter(scope), |_, (landmark, far), dst| Some(((*dst, *landmark), far + 1)))
            .concat(start.enter(scope))
            .reduce(|_, far, least| least.push((*far[0].0, 1)))
    })
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("a program");
    let trace = arguments.next().expect("a trace");
    let epochs: usize = arguments.next().and_then(|n| n.parse().ok()).expect("a number of epochs");
    let digest = Arc::new(AtomicI64::new(0));

    timely::execute_from_args(arguments, move |worker| {
        let (index, peers) = (worker.index(), worker.peers());
        let mut probe = Handle::new();
        let (mut input, mut roots) = worker.dataflow(|scope| {
            let (input, weighed) = scope.new_collection::<(Node, Node, u32), isize>();
            let (start, roots) = scope.new_collection::<Node, isize>();
            let edges = weighed.clone().map(|(src, dst, _)| (src, dst));
            let marks = match name.as_str() {
                "bfs" => bfs(edges, roots).map(|(node, value)| mark(node, value.into())),
                "sssp" => sssp(weighed, roots).map(|(node, value)| mark(node, value as i64)),
                "labels" => labels(edges).map(|(node, value)| mark(node, value.into())),
                "pagerank" => pagerank(edges.clone()).concat(ends(&edges)).map(odd),
                "scc" => strongly(edges).map(|(node, value)| mark(node, value.into())),
                "k-core" => core(edges).map(|(node, value)| mark(node, value as i64)),
                "triangles" => {
                    triangles(edges).map(|(a, b, c)| odd(a).wrapping_mul(odd(b)).wrapping_mul(odd(c)))
                }
                "landmarks" => landmarks(edges).map(|((node, landmark), far)| {
                    odd(node).wrapping_mul(odd(landmark)).wrapping_mul(odd(far))
                }),
                _ => panic!("no program {name}"),
            };
            let digest = digest.clone();
            marks
                .consolidate()
                .inspect(move |(mark, _, diff)| {
                    digest.fetch_add(mark.wrapping_mul(*diff as i64), SeqCst);
                })
                .probe_with(&mut probe);
            (input, start)
        });

        let before = resident();
        for epoch in 0..epochs {
            let changes = std::fs::read(format!("{trace}/{epoch:04}.bin")).expect("an epoch of the trace");
            let (began, cpu) = (Instant::now(), cpu_seconds());
            for [src, dst, weight, diff] in share(&changes, index, peers) {
                input.update((src as u32, dst as u32, weight as u32), diff as isize);
            }
            if epoch == 0 && index == 0 {
                roots.insert(0);
            }
            drop(changes);
            roots.advance_to(epoch + 1);
            roots.flush();
            input.advance_to(epoch + 1);
            input.flush();
            while probe.less_than(input.time()) {
                worker.step_or_park(None);
            }
            if index == 0 {
                println!(
                    r#"{{"seconds": {}, "wall": {}, "digest": {}, "resident": {}}}"#,
                    cpu_seconds() - cpu,
                    began.elapsed().as_secs_f64(),
                    digest.load(SeqCst),
                    resident().saturating_sub(before)
                );
            }
        }
    })
    .unwrap();
}

/// Processor time of this process so far.
fn cpu_seconds() -> f64 {
    extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const PROCESS: i32 = 2; // CLOCK_PROCESS_CPUTIME_ID of Linux
    let mut time = [0i64; 2];
    unsafe { clock_gettime(PROCESS, &mut time) };
    time[0] as f64 + time[1] as f64 / 1e9
}

/// Bytes of memory that this process has, without those that it no longer uses.
fn resident() -> usize {
    extern "C" {
        fn malloc_trim(pad: usize) -> i32;
    }
    unsafe { malloc_trim(0) };
    let pages = std::fs::read_to_string("/proc/self/statm").expect("a process of Linux");
    4096 * pages.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).expect("the resident pages")
}
