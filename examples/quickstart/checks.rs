//! The claims of the quickstart, each held against the API server.

use std::cell::{Cell, RefCell};

use crate::timeline::Timeline;

/// Counts claims, and tells what came of each.
#[derive(Debug)]
pub(crate) struct Checks {
    timeline: Timeline,
    held: Cell<usize>,
    broken: RefCell<Vec<String>>,
}

impl Checks {
    /// None yet.
    pub(crate) fn new(timeline: &Timeline) -> Self {
        Self { timeline: timeline.clone(), held: Cell::new(0), broken: RefCell::default() }
    }

    /// Holds a claim against what was `seen`: an error says what that was instead. True if it holds.
    pub(crate) fn check(&self, claim: impl Into<String>, seen: Result<(), String>) -> bool {
        let claim = claim.into();
        match &seen {
            Ok(()) => {
                self.timeline.held(&claim);
                self.held.set(self.held.get() + 1);
            }
            Err(seen) => {
                self.timeline.broken(&claim, seen);
                self.broken.borrow_mut().push(claim);
            }
        }
        seen.is_ok()
    }

    /// How many claims held.
    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }

    /// Those that didn't.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.broken.borrow().clone()
    }

    /// Whether all of them held.
    pub(crate) fn all_held(&self) -> bool {
        self.broken.borrow().is_empty()
    }
}

/// What was seen, for a claim that holds if it is `expected`.
pub(crate) fn is<T: PartialEq + std::fmt::Debug>(seen: &T, expected: &T) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
}
