//! Which decoding sequences of a step have the same blocks at the head of their tables, so that cascade attention reads
//! these once for all of them.

use kernels::ops::Sequence;

/// Sequences of a group at least, and tokens that they share. Much of what is read again comes from the GPU's cache,
/// and a tile of the kernel has room for the heads of 32 sequences of four a kv head: with 8 sequences it is slower
/// however much they share (H100, Llama-8B, 16,384 tokens: 76 us and 68; with 64: 183 and 470).
const LEAST_MEMBERS: usize = 16;
const LEAST_TOKENS: usize = 256;
/// Keys and values of a layer that need not be read again, in bytes, from which on a second kernel pays (64 sequences
/// that share 512 tokens, 132 MB: 50 us and 39; 2,048 tokens, 528 MB: 57 and 82; of 8-bit floats, 264 MB: 47 and 54).
const LEAST_BYTES: usize = 192 << 20;

/// Which tables of a step's sequences are looked at: those that no layer reads whole may name any block where none is
/// read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tables<'a> {
    All,
    Some(&'a [usize]),
}

impl Tables<'_> {
    fn has(self, table: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(tables) => tables.contains(&table),
        }
    }
}

/// Where sharing begins to pay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Least {
    pub(crate) members: usize,
    pub(crate) tokens: usize,
    /// Tokens whose keys and values need not be read again.
    pub(crate) saved_tokens: usize,
}

impl Least {
    /// `token_bytes`: of keys and values of a token in a layer.
    pub(crate) fn paying(token_bytes: usize) -> Self {
        let saved_tokens = LEAST_BYTES.div_ceil(token_bytes.max(1));
        Self { members: LEAST_MEMBERS, tokens: LEAST_TOKENS, saved_tokens }
    }

    /// Any two sequences that share a block of 16 tokens: for tests.
    pub(crate) const ANY: Self = Self { members: 2, tokens: 16, saved_tokens: 16 };
}

/// A group of sequences with one row each that share the first blocks of a table.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct SharedPrefix {
    /// Which sequences of the batch, ascending.
    pub(crate) members: Vec<usize>,
    /// Blocks that all of them share, of each table; 0 where that is too few.
    pub(crate) blocks: Vec<usize>,
    /// Tokens that each of them had in the cache before this step, at least. No later ones count as shared.
    pub(crate) tokens: usize,
}

impl SharedPrefix {
    /// The group that saves most of what is read, if one saves enough. `block_size`: tokens of a block, at least.
    pub(crate) fn find(
        sequences: &[Sequence<'_>],
        tables: Tables<'_>,
        block_size: usize,
        least: Least,
    ) -> Option<Self> {
        let decoding: Vec<usize> = (0..sequences.len()).filter(|&index| sequences[index].num_rows == 1).collect();
        if decoding.len() < least.members || block_size == 0 {
            return None;
        }
        let count = sequences[decoding[0]].tables.len();
        let heads_of = |table: usize| decoding.iter().map(move |&index| head(&sequences[index], table, block_size));
        let looked_at = (0..count).filter(|&table| tables.has(table));
        let groups = looked_at.filter_map(|table| largest(&heads_of(table).collect::<Vec<_>>(), least.members));
        let group = groups.max_by_key(Group::saved_blocks)?;
        if group.depth * block_size < least.tokens || group.saved_blocks() * block_size < least.saved_tokens {
            return None;
        }
        let members: Vec<usize> = group.members.iter().map(|&member| decoding[member]).collect();
        let common = |table: usize| {
            let heads: Vec<&[u32]> = members.iter().map(|&index| head(&sequences[index], table, block_size)).collect();
            let blocks = common_depth(&heads, 0);
            if tables.has(table) && blocks * block_size >= least.tokens { blocks } else { 0 }
        };
        let tokens = members.iter().map(|&index| sequences[index].start).min()?;
        Some(Self { blocks: (0..count).map(common).collect(), tokens, members })
    }
}

/// A sequence's blocks that were full before this step.
fn head<'a>(sequence: &Sequence<'a>, table: usize, block_size: usize) -> &'a [u32] {
    let blocks = &sequence.tables[table];
    &blocks[..(sequence.start / block_size).min(blocks.len())]
}

/// Some of a list of tables, which are the same up to `depth`.
struct Group {
    members: Vec<usize>,
    depth: usize,
}

impl Group {
    /// Blocks that need not be read again.
    fn saved_blocks(&self) -> usize {
        (self.members.len() - 1) * self.depth
    }
}

/// The group of at least `least` tables that saves most: all groups are looked at, as nodes of the tables' trie. Each
/// block of each table is compared once.
fn largest(tables: &[&[u32]], least: usize) -> Option<Group> {
    let mut best: Option<Group> = None;
    let mut nodes = vec![Group { members: (0..tables.len()).collect(), depth: 0 }];
    while let Some(node) = nodes.pop() {
        for members in children(tables, &node).into_iter().filter(|members| members.len() >= least) {
            let heads: Vec<&[u32]> = members.iter().map(|&member| tables[member]).collect();
            nodes.push(Group { depth: common_depth(&heads, node.depth), members });
        }
        if best.as_ref().is_none_or(|best| best.saved_blocks() < node.saved_blocks()) {
            best = Some(node);
        }
    }
    best.filter(|best| best.depth > 0)
}

/// The members of a group by their next block, in ascending order; those without one are left out.
fn children(tables: &[&[u32]], node: &Group) -> Vec<Vec<usize>> {
    let next = |&member: &usize| tables[member].get(node.depth).map(|&block| (block, member));
    let mut next: Vec<(u32, usize)> = node.members.iter().filter_map(next).collect();
    next.sort_unstable();
    next.chunk_by(|a, b| a.0 == b.0).map(|same| same.iter().map(|(_, member)| *member).collect()).collect()
}

/// Up to where all tables are the same, which they are up to `depth`.
fn common_depth(tables: &[&[u32]], depth: usize) -> usize {
    let Some((first, others)) = tables.split_first() else { return depth };
    others.iter().fold(first.len(), |end, other| {
        let end = end.min(other.len()).max(depth);
        if first[depth..end] == other[depth..end] {
            return end;
        }
        let same = first[depth..end].iter().zip(&other[depth..end]).take_while(|(a, b)| a == b);
        depth + same.count()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 16;

    /// A sequence with a row at `start`, or several, whose table begins with some blocks and goes on with its own.
    struct Row {
        start: usize,
        rows: usize,
        tables: Vec<Vec<u32>>,
    }

    fn row(index: usize, start: usize, shared: &[u32]) -> Row {
        let own = (0..start / SIZE + 2).map(|block| 1_000_000 + (index * 10_000 + block) as u32);
        Row { start, rows: 1, tables: vec![shared.iter().copied().chain(own).take(start / SIZE + 1).collect()] }
    }

    fn find(rows: &[Row], least: Least) -> Option<SharedPrefix> {
        find_in(Tables::All, rows, least)
    }

    fn find_in(tables: Tables<'_>, rows: &[Row], least: Least) -> Option<SharedPrefix> {
        let sequences: Vec<Sequence<'_>> = rows
            .iter()
            .enumerate()
            .map(|(slot, Row { start, rows, tables })| Sequence {
                first_row: slot,
                num_rows: *rows,
                start: *start,
                tables,
                slot,
            })
            .collect();
        SharedPrefix::find(&sequences, tables, SIZE, least)
    }

    fn blocks(count: usize) -> Vec<u32> {
        (0..count as u32).rev().collect()
    }

    #[test]
    fn all_rows_share_up_to_where_the_first_differs() {
        let shared = blocks(40);
        let rows: Vec<Row> = [40, 33, 40, 38].iter().enumerate().map(|(i, n)| row(i, 700, &shared[..*n])).collect();
        let found = find(&rows, Least::ANY).unwrap();
        // Three that share 38 save 76 blocks, all four 99.
        assert_eq!(found, SharedPrefix { members: vec![0, 1, 2, 3], blocks: vec![33], tokens: 700 });
    }

    #[test]
    fn the_group_that_saves_most_counts() {
        let (few, long) = (blocks(4), (500..600).collect::<Vec<_>>());
        let mut rows: Vec<Row> = (0..6).map(|i| row(i, 1700, &few)).collect();
        rows.extend((6..9).map(|i| row(i, 1700, &long)));
        let found = find(&rows, Least::ANY).unwrap();
        assert_eq!(found, SharedPrefix { members: vec![6, 7, 8], blocks: vec![100], tokens: 1700 });
        // A group inside a group: all share 4 blocks, and some 60 more.
        let deep: Vec<u32> = few.iter().copied().chain(900..960).collect();
        let mut rows: Vec<Row> = (0..9).map(|i| row(i, 1700, &few)).collect();
        rows.extend((9..12).map(|i| row(i, 1700, &deep)));
        let found = find(&rows, Least::ANY).unwrap();
        assert_eq!((found.members, found.blocks), (vec![9, 10, 11], vec![64]));
    }

    #[test]
    fn only_rows_alone_and_only_what_was_there_before_counts() {
        let shared = blocks(40);
        let mut rows: Vec<Row> = (0..4).map(|i| row(i, 640, &shared)).collect();
        rows[1].rows = 5;
        // The block that a row is written to is its own, whatever the table says.
        rows[3].start = 170;
        let found = find(&rows, Least::ANY).unwrap();
        assert_eq!(found, SharedPrefix { members: vec![0, 2], blocks: vec![40], tokens: 640 });
        rows[2].rows = 2;
        let found = find(&rows, Least::ANY).unwrap();
        assert_eq!(found, SharedPrefix { members: vec![0, 3], blocks: vec![10], tokens: 170 });
        rows[3].start = 15;
        assert_eq!(find(&rows, Least::ANY), None);
        assert_eq!(find(&[], Least::ANY), None);
    }

    #[test]
    fn each_table_is_shared_as_far_as_the_group_shares_it() {
        let shared = blocks(40);
        let rows: Vec<Row> = (0..3)
            .map(|i| Row {
                tables: vec![row(i, 640, &shared[..i]).tables.remove(0), row(i, 640, &shared).tables.remove(0)],
                ..row(i, 640, &shared)
            })
            .collect();
        let found = find(&rows, Least::ANY).unwrap();
        assert_eq!(found, SharedPrefix { members: vec![0, 1, 2], blocks: vec![0, 40], tokens: 640 });
    }

    #[test]
    fn tables_that_no_layer_reads_whole_do_not_count() {
        // Two of four sequences share; all have the same entries behind a window.
        let (shared, unread) = (blocks(40), vec![0; 40]);
        let rows: Vec<Row> = (0..4)
            .map(|i| Row {
                tables: vec![
                    row(i, 640, &unread).tables.remove(0),
                    row(i, 640, &shared[..if i < 2 { 40 } else { 0 }]).tables.remove(0),
                ],
                ..row(i, 640, &shared)
            })
            .collect();
        let found = find_in(Tables::Some(&[1]), &rows, Least::ANY).unwrap();
        assert_eq!(found, SharedPrefix { members: vec![0, 1], blocks: vec![0, 40], tokens: 640 });
        assert_eq!(find_in(Tables::Some(&[]), &rows, Least::ANY), None);
    }

    #[test]
    fn it_must_pay() {
        // A layer of Llama-8B: 8 key heads of 128 in 16 bits.
        let least = Least::paying(4096);
        let (short, long) = (blocks(15), blocks(1024));
        let rows = |count: usize, shared: &[u32]| -> Vec<Row> {
            (0..count).map(|i| row(i, 16 * shared.len() + 5, shared)).collect()
        };
        assert!(find(&rows(64, &long), least).is_some());
        assert!(find(&rows(16, &long), least).is_some());
        assert_eq!(find(&rows(15, &long), least), None);
        assert_eq!(find(&rows(250, &short), least), None);
        // 15 times 1,024 tokens of 4 KiB are 60 MiB.
        assert_eq!(find(&rows(16, &long[..64]), least), None);
        assert!(find(&rows(50, &long[..64]), least).is_some());
    }
}
