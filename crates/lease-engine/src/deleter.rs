//! Deletion of the items of ended leases.

use std::{collections::HashSet, convert::Infallible, hash::Hash};

/// Deletes items.
///
/// [`SharedLessor`](super::SharedLessor) repeats deletions after a failure elsewhere. So deleting an item that is
/// already gone must succeed.
pub trait ItemDeleter<K>: Send {
    /// Why a deletion failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Deletes one item.
    ///
    /// # Errors
    /// If the item may still exist. The lease's end then counts as failed, and is tried again.
    fn delete(&mut self, item: &K) -> Result<(), Self::Error>;
}

/// Items in memory: a set, from which deletion removes them.
#[derive(Clone, Debug)]
pub struct MemoryItems<K>(pub HashSet<K>);

impl<K: Eq + Hash + Send> ItemDeleter<K> for MemoryItems<K> {
    type Error = Infallible;

    fn delete(&mut self, item: &K) -> Result<(), Infallible> {
        self.0.remove(item);
        Ok(())
    }
}
