//! What is attached to leases. An item has one owner.

use std::{hash::Hash, iter, mem};

use super::{
    Error,
    engine::Lessor,
    index::{Found, NONE},
};

/// An item's owner, and its neighbours in the list of that lease's items.
#[derive(Clone, Debug)]
pub(super) struct Item {
    lease: u32,
    prev: u32,
    next: u32,
}

impl<I: Copy + Eq + Hash, K: Eq + Hash> Lessor<I, K> {
    /// Attaches an item to a lease. One that was attached to another moves; the answer is whose it was. O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`], [`Error::LeaseExpired`], [`Error::Full`]; nothing has changed then.
    pub fn attach(&mut self, id: I, item: K) -> Result<Option<I>, Error> {
        let sought = self.items.seek(&item);
        let lease = self.alive(id)?;
        let fresh = Item { lease, prev: NONE, next: NONE };
        let (at, former) = match self.items.insert_sought(sought, item, fresh) {
            Found::New(at) => (at, None),
            Found::Old(at) => (at, self.unlink_item(at)),
            Found::Full => return Err(Error::Full),
        };
        self.link_item(at, lease);
        Ok(former.map(|former| self.leases.get(former).id))
    }

    /// Detaches an item from a lease; false if it wasn't attached to this one, and then nothing has changed.
    /// O(1).
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`].
    pub fn detach(&mut self, id: I, item: &K) -> Result<bool, Error> {
        let lease = self.leases.find(id).ok_or(Error::LeaseNotFound)?;
        let Some(at) = self.items.find(item) else { return Ok(false) };
        if self.items.get(at).is_none_or(|(_, item)| item.lease != lease) {
            return Ok(false);
        }
        self.unlink_item(at);
        self.items.remove(at);
        Ok(true)
    }

    /// The lease that an item is attached to. O(1).
    pub fn lease_of(&self, item: &K) -> Option<I> {
        let (_, item) = self.items.get(self.items.find(item)?)?;
        Some(self.leases.get(item.lease).id)
    }

    /// What is attached to a lease, latest first; nothing if there is no such lease.
    pub fn items(&self, id: I) -> impl Iterator<Item = &K> {
        let mut at = self.leases.find(id).map_or(NONE, |n| self.leases.get(n).items);
        iter::from_fn(move || {
            let (key, item) = self.items.get(at)?;
            at = item.next;
            Some(key)
        })
    }

    /// Forgets the items of a lease that is over.
    pub(super) fn take_items(&mut self, mut at: u32) -> Vec<K> {
        let mut taken = Vec::new();
        while let Some((key, item)) = self.items.remove(at) {
            at = item.next;
            taken.push(key);
        }
        taken
    }

    fn link_item(&mut self, at: u32, lease: u32) {
        let first = mem::replace(&mut self.leases.get_mut(lease).items, at);
        if let Some(item) = self.items.get_mut(at) {
            *item = Item { lease, prev: NONE, next: first };
        }
        if let Some(item) = self.items.get_mut(first) {
            item.prev = at;
        }
    }

    /// Takes an item out of its lease's list, and answers which lease that was.
    fn unlink_item(&mut self, at: u32) -> Option<u32> {
        let (_, &Item { lease, prev, next }) = self.items.get(at)?;
        if let Some(item) = self.items.get_mut(prev) {
            item.next = next;
        } else {
            self.leases.get_mut(lease).items = next;
        }
        if let Some(item) = self.items.get_mut(next) {
            item.prev = prev;
        }
        Some(lease)
    }
}
