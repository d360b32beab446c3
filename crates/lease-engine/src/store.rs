//! Persistence of leases.

use std::{collections::HashMap, convert::Infallible, hash::Hash};

use super::Record;

/// Storage of leases, which `SharedLessor` writes before it returns.
pub trait Store<I>: Send {
    /// Why an operation failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Saves a lease. Replaces one with the same id.
    ///
    /// # Errors
    /// If the lease may not be saved.
    fn save(&mut self, record: &Record<I>) -> Result<(), Self::Error>;

    /// Removes a lease, if it is there.
    ///
    /// # Errors
    /// If the lease may still be there.
    fn remove(&mut self, id: I) -> Result<(), Self::Error>;

    /// All saved leases.
    ///
    /// # Errors
    /// If a lease may be missing.
    fn load(&mut self) -> Result<Vec<Record<I>>, Self::Error>;
}

/// A store in memory, for tests and for leases that need not outlive the process.
#[derive(Clone, Debug)]
pub struct MemoryStore<I>(HashMap<I, Record<I>>);

impl<I> Default for MemoryStore<I> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<I: Copy + Eq + Hash + Send> Store<I> for MemoryStore<I> {
    type Error = Infallible;

    fn save(&mut self, record: &Record<I>) -> Result<(), Infallible> {
        self.0.insert(record.id, *record);
        Ok(())
    }

    fn remove(&mut self, id: I) -> Result<(), Infallible> {
        self.0.remove(&id);
        Ok(())
    }

    fn load(&mut self) -> Result<Vec<Record<I>>, Infallible> {
        Ok(self.0.values().copied().collect())
    }
}
