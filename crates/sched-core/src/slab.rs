//! A table whose indices stay valid: requests and sequences are found by index, not by hashing.

use std::ops::{Index, IndexMut};

/// Items at stable indices; freed indices are reused.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }

    pub fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = Some(item);
            return index;
        }
        self.items.push(Some(item));
        (self.items.len() - 1) as u32
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let item = self.items.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(item)
    }

    pub fn get(&self, index: u32) -> Option<&T> {
        self.items.get(index as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.items.get_mut(index as usize)?.as_mut()
    }

    /// Two different items that the scheduler keeps.
    pub fn both(&mut self, one: u32, other: u32) -> [&mut T; 2] {
        let items = self.items.get_disjoint_mut([one as usize, other as usize]).expect("two indices");
        items.map(|item| item.as_mut().expect("an index that the scheduler keeps"))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().enumerate().filter_map(|(index, item)| Some((index as u32, item.as_ref()?)))
    }

    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

/// Indexing is for indices that the scheduler itself keeps; one that is gone is a bug.
impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        self.items[index as usize].as_ref().expect("an index that the scheduler keeps")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.items[index as usize].as_mut().expect("an index that the scheduler keeps")
    }
}
