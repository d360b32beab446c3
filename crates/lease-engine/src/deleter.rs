//! What deletes the items of leases that are over.

use std::{collections::HashSet, convert::Infallible, hash::Hash};

/// Deletes items. A deletion may be asked for again, after a failure elsewhere: an item that is gone already
/// is deleted.
pub trait ItemDeleter<K>: Send {
    /// Why it couldn't.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Deletes one item.
    ///
    /// # Errors
    /// If the item isn't gone for sure: the lease's end has failed then, and is tried again.
    fn delete(&mut self, item: &K) -> Result<(), Self::Error>;
}

/// Items in memory: whatever is in the set exists until it's deleted.
#[derive(Clone, Debug)]
pub struct MemoryItems<K>(pub HashSet<K>);

impl<K: Eq + Hash + Send> ItemDeleter<K> for MemoryItems<K> {
    type Error = Infallible;

    fn delete(&mut self, item: &K) -> Result<(), Infallible> {
        self.0.remove(item);
        Ok(())
    }
}
