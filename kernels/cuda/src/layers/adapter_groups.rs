//! Rows of a step in groups of one adapter's slot: kernels read an adapter once for all rows of a group.
//!
//! What a captured step names stays where it is: as many groups as that number of rows can have, of which some are
//! empty, then the rows in the order of their slots, then the slots of the rows as they are.

use std::ops::Range;

/// Slot of a row without an adapter.
pub(crate) const NONE: u32 = u32::MAX;
/// Rows from which on groups are large, and a block sums all inputs.
pub(crate) const MANY: usize = 512;
/// Words of a group: its slot, where its rows begin in the order, and how many they are (`struct Group` of
/// csrc/include/adapter_rows.cuh).
const WORDS: usize = 3;

/// Where a step's groups, order and slots lie among its words.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AdapterGroups {
    pub(crate) rows: usize,
    pub(crate) groups: usize,
}

impl AdapterGroups {
    /// For `rows` rows and adapters of `slots` slots.
    pub(crate) fn new(rows: usize, slots: usize) -> Self {
        // A slot's last group may have few rows; so may that of rows without an adapter.
        Self { rows, groups: rows.min(rows.div_ceil(Self::tile(rows)) + slots + 1) }
    }

    /// Words that steps of up to `rows` rows take.
    pub(crate) fn most_words(rows: usize, slots: usize) -> usize {
        [rows, rows.min(MANY - 1)].map(|rows| Self::new(rows, slots).words()).into_iter().max().unwrap_or(0)
    }

    /// Most rows of a group.
    fn tile(rows: usize) -> usize {
        if Self::is_many(rows) { 32 } else { 16 }
    }

    fn is_many(rows: usize) -> bool {
        rows >= MANY
    }

    /// Pieces of 16 rows that a group has at most.
    pub(crate) fn tiles(&self) -> usize {
        Self::tile(self.rows) / 16
    }

    /// Whether a block sums all inputs of its rows.
    pub(crate) fn sums_all(&self) -> bool {
        Self::is_many(self.rows)
    }

    pub(crate) fn words(&self) -> usize {
        WORDS * self.groups + 2 * self.rows
    }

    pub(crate) fn order(&self) -> Range<usize> {
        WORDS * self.groups..WORDS * self.groups + self.rows
    }

    pub(crate) fn slots(&self) -> Range<usize> {
        self.order().end..self.words()
    }

    /// Writes the words of rows with these slots, of which there are `count`.
    pub(crate) fn fill(&self, row_slots: &[u32], count: usize, words: &mut [u32]) {
        assert_eq!((row_slots.len(), words.len()), (self.rows, self.words()), "rows of adapters, and their words");
        let (groups, rest) = words.split_at_mut(WORDS * self.groups);
        let (order, slots) = rest.split_at_mut(self.rows);
        slots.copy_from_slice(row_slots);
        let ends = sort(row_slots, count, order);
        groups.fill(0);
        let mut groups = groups.chunks_exact_mut(WORDS);
        let mut begin = 0;
        for (slot, end) in ends.into_iter().enumerate() {
            let slot = if slot < count { slot as u32 } else { NONE };
            for first in (begin..end).step_by(Self::tile(self.rows)) {
                let size = (end - first).min(Self::tile(self.rows));
                let group = groups.next().expect("as many groups as there can be");
                group.copy_from_slice(&[slot, first as u32, size as u32]);
            }
            begin = end;
        }
        groups.for_each(|group| group[0] = NONE);
    }
}

/// Rows in the order of their slots, those without one last; where each slot's end.
fn sort(slots: &[u32], count: usize, order: &mut [u32]) -> Vec<usize> {
    let place = |slot: &u32| (*slot as usize).min(count);
    let mut ends = vec![0; count + 1];
    slots.iter().for_each(|slot| ends[place(slot)] += 1);
    let mut begins: Vec<usize> = ends
        .iter_mut()
        .scan(0, |end, rows| {
            let begin = *end;
            *end += *rows;
            *rows = *end;
            Some(begin)
        })
        .collect();
    for (row, slot) in slots.iter().enumerate() {
        let at = &mut begins[place(slot)];
        order[*at] = row as u32;
        *at += 1;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of rows with these slots, of three: slot and rows; empty ones are left out.
    fn groups(slots: &[u32]) -> Vec<(u32, Vec<u32>)> {
        let layout = AdapterGroups::new(slots.len(), 3);
        let mut words = vec![77; layout.words()];
        layout.fill(slots, 3, &mut words);
        assert_eq!(&words[layout.slots()], slots);
        let order = &words[layout.order()];
        let rows = |group: &[u32]| order[group[1] as usize..][..group[2] as usize].to_vec();
        let groups = words[..WORDS * layout.groups].chunks_exact(WORDS);
        let (some, none): (Vec<_>, Vec<_>) = groups.partition(|group| group[2] > 0);
        assert!(none.iter().all(|group| group[0] == NONE), "{none:?}");
        some.iter().map(|group| (group[0], rows(group))).collect()
    }

    #[test]
    fn rows_of_a_slot_are_together() {
        assert_eq!(groups(&[2, NONE, 0, 2, 0]), [(0, vec![2, 4]), (2, vec![0, 3]), (NONE, vec![1])]);
        assert_eq!(groups(&[NONE; 3]), [(NONE, vec![0, 1, 2])]);
        assert_eq!(groups(&[]), []);
    }

    #[test]
    fn a_group_has_as_many_rows_as_a_tile() {
        let sizes = |rows: usize| groups(&vec![1; rows]).iter().map(|(_, rows)| rows.len()).collect::<Vec<_>>();
        assert_eq!(sizes(33), [16, 16, 1]);
        assert_eq!(sizes(MANY)[..2], [32, 32]);
    }

    #[test]
    fn there_are_enough_groups_for_any_rows() {
        for rows in [1, 2, 5, 16, 17, 64, 500, MANY, 1000] {
            for step in [1, 2, 3, 7] {
                let slots: Vec<u32> = (0..rows as u32).map(|row| [0, 1, 2, NONE][(row / step) as usize % 4]).collect();
                let all: usize = groups(&slots).iter().map(|(_, rows)| rows.len()).sum();
                assert_eq!(all, rows);
                let layout = AdapterGroups::new(rows, 3);
                assert!(AdapterGroups::most_words(1000, 3) >= layout.words(), "{rows} rows");
            }
        }
    }
}
