//! A slab: values at stable u32 places, in pages that give their memory back when they empty.
//!
//! Nothing in the table outlives its lease or its wait (at most 255 s), and new values go to one
//! page as long as it has room, so after a peak the other pages empty by themselves.

use std::ops::{Index, IndexMut};

/// No place.
pub(super) const NONE: u32 = u32::MAX;

const PAGE_BITS: u32 = 10;
const PAGE: usize = 1 << PAGE_BITS;

pub(super) struct Slab<T> {
    pages: Vec<Page<T>>,
    /// The pages that have room, as a stack: new values go to the last one. Only that one keeps its
    /// memory while it is empty.
    roomy: Vec<u32>,
    len: usize,
}

struct Page<T> {
    /// Grows up to `PAGE`; memory that was never written is not resident.
    slots: Vec<Slot<T>>,
    /// The first free one of `slots`.
    free: u32,
    used: u32,
    /// Whether it is in `roomy`.
    listed: bool,
}

enum Slot<T> {
    Free(u32),
    Used(T),
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Slab {
            pages: Vec::new(),
            roomy: Vec::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, at: u32) -> bool {
        let (page, slot) = split(at);
        matches!(
            self.pages.get(page).and_then(|p| p.slots.get(slot)),
            Some(Slot::Used(_))
        )
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let page_no = self.roomy_page();
        let page = &mut self.pages[page_no as usize];
        let slot = if page.free == NONE {
            if page.slots.capacity() == 0 {
                page.slots.reserve_exact(PAGE);
            }
            page.slots.push(Slot::Used(value));
            u32::try_from(page.slots.len() - 1).expect("a page is small")
        } else {
            let slot = page.free;
            match std::mem::replace(&mut page.slots[slot as usize], Slot::Used(value)) {
                Slot::Free(next) => page.free = next,
                Slot::Used(_) => unreachable!("a used slot in the free list"),
            }
            slot
        };
        page.used += 1;
        self.len += 1;
        page_no << PAGE_BITS | slot
    }

    fn roomy_page(&mut self) -> u32 {
        while let Some(&page_no) = self.roomy.last() {
            let page = &mut self.pages[page_no as usize];
            if (page.used as usize) < PAGE {
                return page_no;
            }
            page.listed = false;
            self.roomy.pop();
        }
        let page_no = u32::try_from(self.pages.len()).expect("far fewer pages than 2^32");
        assert!(
            page_no < NONE >> PAGE_BITS,
            "more than 2^32 values in a slab"
        );
        self.pages.push(Page {
            slots: Vec::new(),
            free: NONE,
            used: 0,
            listed: true,
        });
        self.roomy.push(page_no);
        page_no
    }

    pub(super) fn remove(&mut self, at: u32) -> T {
        let (page_no, slot) = split(at);
        let page = &mut self.pages[page_no];
        let freed = Slot::Free(page.free);
        let Slot::Used(value) = std::mem::replace(&mut page.slots[slot], freed) else {
            unreachable!("removed twice");
        };
        page.free = slot as u32;
        page.used -= 1;
        self.len -= 1;
        let (empty, listed) = (page.used == 0, page.listed);
        if self.len == 0 && self.pages.len() > 1 {
            // A last page high up would keep the allocator from giving back what lies below it.
            *self = Slab::new();
            return value;
        }
        let last = self.roomy.last().copied();
        if !listed {
            self.pages[page_no].listed = true;
            self.roomy.push(page_no as u32);
            if let Some(last) = last {
                self.drop_if_empty(last as usize);
            }
        } else if empty && last != Some(page_no as u32) {
            self.drop_if_empty(page_no);
        }
        value
    }

    /// For how many values there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pages.iter().map(|page| page.slots.capacity()).sum()
    }

    fn drop_if_empty(&mut self, page_no: usize) {
        let page = &mut self.pages[page_no];
        if page.used == 0 {
            page.slots = Vec::new();
            page.free = NONE;
        }
    }
}

fn split(at: u32) -> (usize, usize) {
    ((at >> PAGE_BITS) as usize, at as usize % PAGE)
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        let (page, slot) = split(at);
        match &self.pages[page].slots[slot] {
            Slot::Used(value) => value,
            Slot::Free(_) => unreachable!("a free place was read"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        let (page, slot) = split(at);
        match &mut self.pages[page].slots[slot] {
            Slot::Used(value) => value,
            Slot::Free(_) => unreachable!("a free place was written"),
        }
    }
}
