//! Items that are attached to leases. An item has one owner. The items of a lease are a linked list; its head is with the
//! lease.

use std::{hash::Hash, iter, mem};

use super::table::{Found, NONE, Table};

/// An item's owner, and its neighbours in the list of that lease's items.
#[derive(Clone, Debug)]
struct Item {
    lease: u32,
    prev: u32,
    next: u32,
}

/// All items, by key.
#[derive(Clone, Debug)]
pub(super) struct Items<K>(Table<K, Item>);

impl<K> Default for Items<K> {
    fn default() -> Self {
        Self(Table::default())
    }
}

impl<K> Items<K> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The items of the list with this head, latest first.
    pub(super) fn of(&self, mut head: u32) -> impl Iterator<Item = &K> {
        iter::from_fn(move || {
            let (key, item) = self.0.get(head)?;
            head = item.next;
            Some(key)
        })
    }

    /// Puts an item at the head of the list of a lease.
    pub(super) fn link(&mut self, at: u32, lease: u32, head: &mut u32) {
        let first = mem::replace(head, at);
        if let Some(item) = self.0.get_mut(at) {
            *item = Item { lease, prev: NONE, next: first };
        }
        if let Some(item) = self.0.get_mut(first) {
            item.prev = at;
        }
    }

    /// Removes an item from the list of its lease, and returns that lease. `head_of`: the head of a lease's list.
    pub(super) fn unlink<'a>(&mut self, at: u32, head_of: impl FnOnce(u32) -> &'a mut u32) -> Option<u32> {
        let (_, &Item { lease, prev, next }) = self.0.get(at)?;
        if let Some(item) = self.0.get_mut(prev) {
            item.next = next;
        } else {
            *head_of(lease) = next;
        }
        if let Some(item) = self.0.get_mut(next) {
            item.prev = prev;
        }
        Some(lease)
    }
}

impl<K: Eq + Hash> Items<K> {
    /// Adds an item that has yet to be [linked](Self::link), unless it is there.
    pub(super) fn insert(&mut self, key: K, lease: u32) -> Found {
        self.0.insert(key, Item { lease, prev: NONE, next: NONE })
    }

    /// The number of an item, and its lease.
    pub(super) fn find(&self, key: &K) -> Option<(u32, u32)> {
        let at = self.0.find(key)?;
        let (_, item) = self.0.get(at)?;
        Some((at, item.lease))
    }

    /// Removes an item that was [unlinked](Self::unlink).
    pub(super) fn remove(&mut self, at: u32) {
        self.0.remove(at);
    }

    /// Removes all items of the list with this head.
    pub(super) fn take(&mut self, mut head: u32) -> Vec<K> {
        let mut taken = Vec::new();
        while let Some((key, item)) = self.0.remove(head) {
            head = item.next;
            taken.push(key);
        }
        taken
    }
}
