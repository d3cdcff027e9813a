//! Codes of a whole matrix as files have them, and rows of them as devices take them.

use std::borrow::Cow;
use std::ops::Range;

use kernels::ops::CodeBits;

/// Bits of a word.
const WORD: usize = 32;

/// Words of four bytes that hold several codes, to be read here and there.
pub(super) struct Words<'a>(Cow<'a, [u8]>);

impl<'a> Words<'a> {
    /// Those that lie in some bytes.
    pub(super) fn of(bytes: Cow<'a, [u8]>) -> Self {
        Self(bytes)
    }

    pub(super) fn at(&self, index: usize) -> u32 {
        let bytes = &self.0[index * 4..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// `bits` bits from bit `first` of a line of words on, which are `stride` words from each other; they may lie in
    /// two words.
    pub(super) fn bits(&self, line: usize, stride: usize, first: usize, bits: usize) -> u8 {
        let (word, shift) = (first / WORD, first % WORD);
        let low = u64::from(self.at(line + word * stride));
        let high = if shift + bits > WORD { u64::from(self.at(line + (word + 1) * stride)) } else { 0 };
        ((low | high << WORD) >> shift & ((1 << bits) - 1)) as u8
    }
}

/// Words that a line of `codes` codes takes.
pub(super) fn words(codes: usize, bits: usize) -> usize {
    (codes * bits).div_ceil(WORD)
}

/// Whether words of such codes are pieces of rows as devices take them.
fn is_kept(codes: usize, bits: usize) -> bool {
    (bits == 4 || bits == 8) && (codes * bits).is_multiple_of(WORD)
}

/// Reads the codes of some columns of a row.
pub(super) type ReadCodes<'a> = Box<dyn Fn(usize, Range<usize>, &mut [u8]) + Sync + 'a>;

/// How a matrix has its codes.
pub(super) enum StoredCodes<'a> {
    /// Read row by row.
    Each(ReadCodes<'a>),
    /// Read eight rows at a time, which the first row given begins: some columns of it, then of the next.
    Eights(ReadCodes<'a>),
    /// Rows after each other, as devices take them (`GroupedCodes::codes` of the kernels).
    Rows(Cow<'a, [u8]>),
    /// Four bytes of each row after each other, as devices take them, then the next four of each.
    Columns(Words<'a>),
}

impl<'a> StoredCodes<'a> {
    /// Codes that follow each other along the inputs, each row's words one after the other: `[out, in * bits / 32]`.
    pub(super) fn along_rows(words: Words<'a>, [cols, bits]: [usize; 2]) -> Self {
        if is_kept(cols, bits) {
            return Self::Rows(words.0);
        }
        let line = self::words(cols, bits);
        Self::Each(Box::new(move |row, cols, out| {
            cols.zip(out).for_each(|(col, code)| *code = words.bits(row * line, 1, col * bits, bits));
        }))
    }

    /// The same with words of all rows beside each other: `[in * bits / 32, out]`.
    pub(super) fn along_columns(words: Words<'a>, [rows, cols, bits]: [usize; 3]) -> Self {
        if is_kept(cols, bits) {
            return Self::Columns(words);
        }
        Self::Each(Box::new(move |row, cols, out| {
            cols.zip(out).for_each(|(col, code)| *code = words.bits(row, rows, col * bits, bits));
        }))
    }

    /// With this number added to each, which is zero where codes are kept as they lie.
    pub(super) fn lifted(self, lift: u8) -> Self {
        match self {
            Self::Each(read) if lift > 0 => Self::Each(Box::new(move |row, cols, out| {
                read(row, cols, out);
                out.iter_mut().for_each(|code| *code += lift);
            })),
            codes => codes,
        }
    }
}

/// The codes of a matrix of this shape.
#[derive(Clone, Copy)]
pub(super) struct CodeRows<'m, 'a> {
    pub codes: &'m StoredCodes<'a>,
    pub bits: CodeBits,
    pub shape: [usize; 2],
}

/// Codes that were read at once, one a byte, and their first row. It is for the same columns of one matrix.
#[derive(Default)]
pub(super) struct Room {
    codes: Vec<u8>,
    first: Option<usize>,
}

impl<'a> CodeRows<'_, 'a> {
    /// All columns of rows that lie in the file as devices take them.
    pub(super) fn stored(self, rows: Range<usize>) -> Option<&'a [u8]> {
        let StoredCodes::Rows(Cow::Borrowed(bytes)) = self.codes else { return None };
        let line = self.bits.row_bytes(self.shape[1]);
        // Beside the last code of a row there is to be nothing else.
        self.shape[1].is_multiple_of(self.in_byte()).then(|| &bytes[rows.start * line..rows.end * line])
    }

    /// Writes some columns of a row as devices take them, in this order if one is given.
    pub(super) fn pack(
        self,
        row: usize,
        cols: &Range<usize>,
        order: Option<&[usize]>,
        room: &mut Room,
        out: &mut [u8],
    ) {
        match order {
            None if self.copy(row, cols, out) => {}
            None => pack(self.bits, self.read(row, cols, room), out),
            Some(order) => {
                let codes = self.read(row, &(0..self.shape[1]), room);
                let ordered: Vec<u8> = order.iter().map(|column| codes[*column]).collect();
                pack(self.bits, &ordered, out);
            }
        }
    }

    /// The same where they lie so that bytes have only to be copied; false, and nothing happens, where not.
    fn copy(self, row: usize, cols: &Range<usize>, out: &mut [u8]) -> bool {
        let [rows, row_codes] = self.shape;
        let (line, first, in_byte) = (self.bits.row_bytes(row_codes), self.bits.row_bytes(cols.start), self.in_byte());
        match self.codes {
            StoredCodes::Rows(bytes) if cols.start.is_multiple_of(in_byte) => {
                out.copy_from_slice(&bytes[row * line + first..][..out.len()]);
            }
            StoredCodes::Columns(words) if cols.start.is_multiple_of(4 * in_byte) => {
                for (at, out) in out.chunks_mut(4).enumerate() {
                    out.copy_from_slice(&words.at((first / 4 + at) * rows + row).to_le_bytes()[..out.len()]);
                }
            }
            _ => return false,
        }
        if let (Some(last), false) = (out.last_mut(), cols.len().is_multiple_of(in_byte)) {
            *last &= 15;
        }
        true
    }

    fn in_byte(self) -> usize {
        if self.bits == CodeBits::Four { 2 } else { 1 }
    }

    /// The codes of some columns of a row, one a byte.
    pub(super) fn read<'r>(self, row: usize, cols: &Range<usize>, room: &'r mut Room) -> &'r [u8] {
        let (width, rows) = (cols.len(), if let StoredCodes::Eights(_) = self.codes { 8 } else { 1 });
        let first = row / rows * rows;
        if room.first != Some(first) {
            room.codes.resize(rows * width, 0);
            self.read_at_once(first, cols.clone(), &mut room.codes);
            room.first = Some(first);
        }
        &room.codes[(row - first) * width..][..width]
    }

    /// As many rows from `row` on as are read at once.
    fn read_at_once(self, row: usize, cols: Range<usize>, out: &mut [u8]) {
        match self.codes {
            StoredCodes::Each(read) | StoredCodes::Eights(read) => read(row, cols, out),
            StoredCodes::Rows(bytes) => {
                let line = &bytes[row * self.bits.row_bytes(self.shape[1])..];
                let code = |col: usize| match self.bits {
                    CodeBits::Eight => line[col],
                    CodeBits::Four => line[col / 2] >> (col % 2 * 4) & 15,
                };
                cols.zip(out).for_each(|(col, out)| *out = code(col));
            }
            StoredCodes::Columns(words) => {
                let (stride, bits) = (self.shape[0], 8 / self.in_byte());
                cols.zip(out).for_each(|(col, out)| *out = words.bits(row, stride, col * bits, bits));
            }
        }
    }
}

/// Writes codes, one a byte, as devices take them.
pub(super) fn pack(bits: CodeBits, codes: &[u8], out: &mut [u8]) {
    match bits {
        CodeBits::Eight => out.copy_from_slice(codes),
        CodeBits::Four => {
            let (pairs, rest) = codes.as_chunks::<2>();
            out.iter_mut().zip(pairs).for_each(|(out, [low, high])| *out = low | high << 4);
            rest.iter().for_each(|code| out[pairs.len()] = *code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_may_lie_in_two_words() {
        // Twelve codes of three bits in each of two columns of two words.
        let codes = [[1_u64, 7, 0, 5, 2, 6, 3, 4, 7, 1, 6, 5], [5, 5, 1, 0, 0, 7, 2, 3, 6, 4, 4, 1]];
        let packed = codes.map(|codes| codes.iter().rev().fold(0, |all, code| all << 3 | code));
        let bytes: Vec<u8> = [packed[0] as u32, packed[1] as u32, (packed[0] >> 32) as u32, (packed[1] >> 32) as u32]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        let words = Words(Cow::Owned(bytes));
        for (column, codes) in codes.iter().enumerate() {
            for (at, code) in codes.iter().enumerate() {
                assert_eq!(u64::from(words.bits(column, 2, at * 3, 3)), *code, "{column} {at}");
            }
        }
        assert_eq!((super::words(12, 3), super::words(32, 3), super::words(8, 4)), (2, 3, 1));
    }

    #[test]
    fn rows_are_the_same_however_they_are_stored() {
        /// Three rows of ten bytes.
        static BYTES: [u8; 30] = *b"thirty bytes, three rows of 10";
        for (bits, width) in [(CodeBits::Four, 20), (CodeBits::Four, 19), (CodeBits::Eight, 10)] {
            let code = move |row: usize, col: usize| match bits {
                CodeBits::Four => BYTES[row * 10 + col / 2] >> (col % 2 * 4) & 15,
                CodeBits::Eight => BYTES[row * 10 + col],
            };
            // Each row as three words, of which the last has two bytes of it.
            let word = |at: usize| BYTES[at % 3 * 10..][..10].chunks(4).nth(at / 3).unwrap_or_default();
            let words: Vec<u8> = (0..9).flat_map(|at| [word(at), &[0; 2]].concat().into_iter().take(4)).collect();
            let ways = [
                StoredCodes::Each(Box::new(move |row, cols, out| {
                    cols.zip(out).for_each(|(col, out)| *out = code(row, col));
                })),
                StoredCodes::Eights(Box::new(move |row, cols, out| {
                    let codes = |row: usize| cols.clone().map(move |col| if row < 3 { code(row, col) } else { 0 });
                    (row..row + 8).flat_map(codes).zip(out).for_each(|(code, out)| *out = code);
                })),
                StoredCodes::Rows(Cow::Borrowed(&BYTES)),
                StoredCodes::Columns(Words::of(Cow::Owned(words))),
            ];
            let backwards: Vec<usize> = (0..width).rev().collect();
            for cols in [0..width, 0..width - 1, 2..width, 3..width, 3..8, 4..7, 8..10] {
                for order in [None, Some(&backwards[..cols.len()])] {
                    let packed = ways.each_ref().map(|codes| {
                        let (rows, mut room) = (CodeRows { codes, bits, shape: [3, width] }, Room::default());
                        let mut out = vec![0; 3 * bits.row_bytes(cols.len())];
                        for (row, out) in out.chunks_exact_mut(bits.row_bytes(cols.len())).enumerate() {
                            rows.pack(row, &cols, order, &mut room, out);
                        }
                        out
                    });
                    let same = packed.iter().all(|packed| *packed == packed_alone(&code, bits, &cols, order));
                    assert!(same, "{bits:?}, {cols:?} of {width}, {order:?}: {packed:?}");
                }
            }
            let stored = |codes| CodeRows { codes, bits, shape: [3, width] }.stored(1..3);
            let is_whole = !(bits == CodeBits::Four && width == 19);
            assert_eq!(stored(&ways[2]), is_whole.then(|| &BYTES[10..]));
            assert!([0, 1, 3].iter().all(|way| stored(&ways[*way]).is_none()));
        }
    }

    /// Three rows, code by code.
    fn packed_alone(
        code: &dyn Fn(usize, usize) -> u8,
        bits: CodeBits,
        cols: &Range<usize>,
        order: Option<&[usize]>,
    ) -> Vec<u8> {
        let columns: Vec<usize> = order.map_or_else(|| cols.clone().collect(), <[usize]>::to_vec);
        let row = |row: usize| -> Vec<u8> {
            let codes: Vec<u8> = columns.iter().map(|col| code(row, *col)).collect();
            match bits {
                CodeBits::Eight => codes,
                CodeBits::Four => codes.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4).collect(),
            }
        };
        (0..3).flat_map(row).collect()
    }
}
