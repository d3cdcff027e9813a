//! Work that is divided among threads while a model loads.

use std::thread;

/// Less than this is not worth a thread, bytes. Scales that are read one by one take 0.1 ms for it.
const LEAST: usize = 1 << 17;

/// Fills `out`, which consists of pieces of `piece` bytes, by `threads` threads. Each fills a part of its own, given
/// the number of its first piece.
pub(crate) fn spread(out: &mut [u8], piece: usize, threads: usize, fill: impl Fn(usize, &mut [u8]) + Sync) {
    let threads = threads.min(out.len() / LEAST).max(1);
    let pieces = (out.len() / piece).div_ceil(threads);
    if threads == 1 {
        return fill(0, out);
    }
    thread::scope(|scope| {
        for (number, part) in out.chunks_mut(pieces * piece).enumerate() {
            let fill = &fill;
            scope.spawn(move || fill(number * pieces, part));
        }
    });
}

/// Rows of `row_bytes` bytes, which `threads` threads fill; each has a closure of its own, which writes one of
/// them, zeros before.
pub(crate) fn spread_rows<F: FnMut(usize, &mut [u8])>(
    [rows, row_bytes]: [usize; 2],
    threads: usize,
    writer: impl Fn() -> F + Sync,
) -> Vec<u8> {
    let (mut out, row_bytes) = (vec![0; rows * row_bytes], row_bytes.max(1));
    spread(&mut out, row_bytes, threads, |first, part| {
        let mut write = writer();
        part.chunks_exact_mut(row_bytes).enumerate().for_each(|(row, out)| write(first + row, out));
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_filled_once() {
        for (pieces, threads) in [(0, 4), (5, 4), (3 * LEAST + 1, 2), (3 * LEAST + 1, 7)] {
            let mut out = vec![0; pieces * 2];
            spread(&mut out, 2, threads, |first, part| {
                for (number, piece) in part.chunks_exact_mut(2).enumerate() {
                    piece[0] += (first + number) as u8;
                    piece[1] += 1;
                }
            });
            assert!(out.chunks_exact(2).zip(0..).all(|(piece, number)| piece == [number as u8, 1]), "{pieces}");
        }
    }
}
