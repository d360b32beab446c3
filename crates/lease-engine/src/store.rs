//! Where leases persist.

use std::{collections::HashMap, convert::Infallible, hash::Hash};

use super::Record;

/// Where leases persist: what the lessor calls before it answers.
pub trait Store<I>: Send {
    /// Why it couldn't.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Keeps a lease; one with this id is replaced.
    ///
    /// # Errors
    /// If it isn't kept for sure.
    fn save(&mut self, record: &Record<I>) -> Result<(), Self::Error>;

    /// Forgets a lease. One that isn't there is no error.
    ///
    /// # Errors
    /// If it isn't forgotten for sure.
    fn remove(&mut self, id: I) -> Result<(), Self::Error>;

    /// All that is kept.
    ///
    /// # Errors
    /// If something is missing.
    fn load(&mut self) -> Result<Vec<Record<I>>, Self::Error>;
}

/// A store in memory: for tests, and for leases that needn't outlive the process.
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
