//! A hash index from something that a slab's values have to their places.

use hashbrown::HashTable;

use super::slab::Slab;

/// Below this many places an index is not worth shrinking.
const SMALL: usize = 1024;

/// Places by hash. `hash` always says how a value in the slab is hashed.
pub(super) struct Places(HashTable<u32>);

impl Places {
    pub(super) const fn new() -> Self {
        Places(HashTable::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// For how many places there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(super) fn find<T>(
        &self,
        slab: &Slab<T>,
        hash: u64,
        is_it: impl Fn(&T) -> bool,
    ) -> Option<u32> {
        self.0.find(hash, |&at| is_it(&slab[at])).copied()
    }

    /// Adds a place that is not in the index yet.
    pub(super) fn insert<T>(&mut self, slab: &Slab<T>, at: u32, hash: impl Fn(&T) -> u64) {
        self.0
            .insert_unique(hash(&slab[at]), at, |&at| hash(&slab[at]));
    }

    /// Takes out a place, whose value is still in the slab.
    pub(super) fn remove<T>(&mut self, slab: &Slab<T>, at: u32, hash: impl Fn(&T) -> u64) {
        let Ok(found) = self.0.find_entry(hash(&slab[at]), |&other| other == at) else {
            unreachable!("a value that is not in its index");
        };
        found.remove();
        // Amortised: the removals since the table was half full pay for the move.
        let capacity = self.0.capacity();
        if capacity > SMALL && self.0.len() < capacity / 8 {
            self.0.shrink_to(capacity / 4, |&at| hash(&slab[at]));
        }
    }
}
