//! Doubly linked lists whose links live in the slab's values.

use super::slab::{NONE, Slab};

/// A value's neighbours in one list.
#[derive(Clone, Copy)]
pub(super) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    pub(super) const NEW: Links = Links {
        prev: NONE,
        next: NONE,
    };
}

/// The ends of a list, `NONE` when it is empty.
#[derive(Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: List = List {
        head: NONE,
        tail: NONE,
    };

    pub(super) fn head(self) -> u32 {
        self.head
    }

    pub(super) fn is_empty(self) -> bool {
        self.head == NONE
    }

    /// `links` says which links of a value belong to this list.
    #[inline]
    pub(super) fn push_back<T>(
        &mut self,
        slab: &mut Slab<T>,
        at: u32,
        links: impl Fn(&mut T) -> &mut Links,
    ) {
        *links(&mut slab[at]) = Links {
            prev: self.tail,
            next: NONE,
        };
        match self.tail {
            NONE => self.head = at,
            tail => links(&mut slab[tail]).next = at,
        }
        self.tail = at;
    }

    #[inline]
    pub(super) fn remove<T>(
        &mut self,
        slab: &mut Slab<T>,
        at: u32,
        links: impl Fn(&mut T) -> &mut Links,
    ) {
        let Links { prev, next } = *links(&mut slab[at]);
        match prev {
            NONE => self.head = next,
            prev => links(&mut slab[prev]).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => links(&mut slab[next]).prev = prev,
        }
    }
}
