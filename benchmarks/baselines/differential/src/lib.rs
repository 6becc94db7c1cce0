//! What the programs share: reading a trace.

/// A worker's share of an epoch's changes, which are rows of little-endian 32-bit integers.
pub fn share<const N: usize>(
    changes: &[u8],
    worker: usize,
    workers: usize,
) -> impl Iterator<Item = [i32; N]> + '_ {
    changes.chunks_exact(4 * N).skip(worker).step_by(workers).map(|row| {
        std::array::from_fn(|at| i32::from_le_bytes(row[4 * at..4 * at + 4].try_into().unwrap()))
    })
}
