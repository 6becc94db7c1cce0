//! The patterns of `benchmarks.motifs` by differential-dogs3: `motifs NAME TRACE EPOCHS`, one worker.
//!
//! A delta query for each edge of the pattern. An answer is the sum of the marks of its matches.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::Arc;

use differential_dataflow::input::Input;
use differential_dataflow::VecCollection;
use differential_dogs3::altneu::AltNeu;
use differential_dogs3::{CollectionIndex, PrefixExtender, ProposeExtensionMethod};
use timely::dataflow::operators::probe::Handle;

type Node = u32;
/// The nodes of a match, in the order of the pattern; 0 where there is none yet.
type Match = [Node; 4];
type Index = CollectionIndex<Node, Node, AltNeu<usize>, isize>;
type Extender<'s, 'a> = dyn PrefixExtender<'s, AltNeu<usize>, isize, Prefix = Match, Extension = Node> + 'a;

/// By edge of the pattern its ends, and a label, 0 to 2, or 3 for any.
fn pattern(name: &str) -> Vec<(usize, usize, usize)> {
    match name {
        "triangles" => vec![(0, 1, 3), (1, 2, 3), (0, 2, 3)],
        "4-cliques" => vec![(0, 1, 3), (0, 2, 3), (0, 3, 3), (1, 2, 3), (1, 3, 3), (2, 3, 3)],
        "diamonds" => vec![(0, 1, 3), (0, 2, 3), (1, 3, 3), (2, 3, 3)],
        "labelled" => vec![(0, 1, 0), (1, 2, 1), (0, 2, 3)],
        _ => panic!("no pattern {name}"),
    }
}

fn matches<'s>(
    edges: &[VecCollection<'s, AltNeu<usize>, (Node, Node)>],
    pattern: &[(usize, usize, usize)],
) -> VecCollection<'s, AltNeu<usize>, Match> {
    let turned = |it: &VecCollection<'s, AltNeu<usize>, (Node, Node)>| it.clone().map(|(a, b)| (b, a));
    let later = |it: VecCollection<'s, AltNeu<usize>, (Node, Node)>| it.delay(|t| AltNeu::neu(t.time));
    // by label: forward and backward, before and after the changes of the time
    let indexes: Vec<[Index; 4]> = edges
        .iter()
        .map(|it| {
            [
                Index::index(it.clone()),
                Index::index(turned(it)),
                Index::index(later(it.clone())),
                Index::index(later(turned(it))),
            ]
        })
        .collect();
    let size = 1 + pattern.iter().map(|atom| atom.0.max(atom.1)).max().unwrap();
    let mut found: Option<VecCollection<'s, AltNeu<usize>, Match>> = None;
    for (number, &(first, second, label)) in pattern.iter().enumerate() {
        let mut bound = vec![first, second];
        let mut prefixes = edges[label].clone().map(move |(a, b)| {
            let mut prefix = [0; 4];
            (prefix[first], prefix[second]) = (a, b);
            prefix
        });
        while bound.len() < size {
            let reaches = |node: usize, bound: &[usize]| {
                pattern
                    .iter()
                    .enumerate()
                    .filter(|(_, atom)| {
                        (atom.0 == node && bound.contains(&atom.1)) || (atom.1 == node && bound.contains(&atom.0))
                    })
                    .map(|(other, atom)| (other, *atom))
                    .collect::<Vec<_>>()
            };
            let next = (0..size)
                .filter(|node| !bound.contains(node))
                .max_by_key(|node| reaches(*node, &bound).len())
                .unwrap();
            let mut extenders: Vec<Box<Extender<'s, 's>>> = reaches(next, &bound)
                .into_iter()
                .map(|(other, (a, b, label))| {
                    let (known, backward) = if a == next { (b, 1) } else { (a, 0) };
                    let index = &indexes[label][backward + if other > number { 2 } else { 0 }];
                    Box::new(index.extend_using(move |prefix: &Match| prefix[known])) as Box<Extender<'s, 's>>
                })
                .collect();
            let mut borrowed: Vec<_> = extenders.iter_mut().map(|one| &mut **one as &mut Extender<'s, '_>).collect();
            prefixes = prefixes.extend(&mut borrowed[..]).map(move |(mut prefix, node)| {
                prefix[next] = node;
                prefix
            });
            bound.push(next);
        }
        found = Some(match found {
            Some(others) => others.concat(prefixes),
            None => prefixes,
        });
    }
    found.unwrap()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("a pattern");
    let trace = arguments.next().expect("a trace");
    let epochs: usize = arguments.next().and_then(|n| n.parse().ok()).expect("a number of epochs");
    let digest = Arc::new(AtomicI64::new(0));

    timely::execute_directly(move |worker| {
        let mut probe = Handle::new();
        let mut input = worker.dataflow::<usize, _, _>(|scope| {
            let (input, edges) = scope.new_collection::<(Node, Node, usize), isize>();
            let pattern = pattern(&name);
            let found = scope.scoped::<AltNeu<usize>, _, _>("matches", |inner| {
                let any = edges.enter(inner);
                let mut kinds = Vec::new();
                for kind in 0..4 {
                    let some = any.clone().filter(move |edge| kind == 3 || edge.2 == kind);
                    kinds.push(some.map(|(a, b, _)| (a, b)));
                }
                matches(&kinds, &pattern).leave(scope)
            });
            let nodes = 1 + pattern.iter().map(|atom| atom.0.max(atom.1)).max().unwrap();
            let digest = digest.clone();
            found
                .consolidate()
                .inspect(move |(found, _, diff)| {
                    let odd = found[..nodes].iter().map(|node| 2 * i64::from(*node) + 1);
                    let mark = odd.product::<i64>() % 1_000_003;
                    digest.fetch_add(mark * *diff as i64, SeqCst);
                })
                .probe_with(&mut probe);
            input
        });
        for epoch in 0..epochs {
            let changes = std::fs::read(format!("{trace}/{epoch:04}.bin")).expect("an epoch of the trace");
            let cpu = cpu_seconds();
            for row in changes.chunks_exact(16) {
                let at = |i: usize| i32::from_le_bytes(row[4 * i..4 * i + 4].try_into().unwrap());
                input.update((at(0) as u32, at(1) as u32, at(2) as usize % 3), at(3) as isize);
            }
            input.advance_to(epoch + 1);
            input.flush();
            while probe.less_than(input.time()) {
                worker.step_or_park(None);
            }
            let seconds = cpu_seconds() - cpu;
            println!(r#"{{"seconds": {seconds}, "digest": {}}}"#, digest.load(SeqCst));
        }
    });
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
