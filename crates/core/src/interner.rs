//! Names that many objects share, each kept in memory once.

use std::{collections::HashSet, sync::Arc};

/// Below this many names, unused ones aren't swept.
const FEW: usize = 64;

/// The names in use.
#[derive(Clone, Debug)]
pub(crate) struct Interner {
    names: HashSet<Arc<str>>,
    /// The number of names at which unused ones are dropped.
    sweep_at: usize,
}

impl Default for Interner {
    fn default() -> Self {
        Self { names: HashSet::new(), sweep_at: FEW }
    }
}

impl Interner {
    /// The shared copy of this name.
    pub(crate) fn intern(&mut self, name: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        if self.names.len() >= self.sweep_at {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = FEW.max(2 * self.names.len());
        }
        self.names.insert(name.clone());
        name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let mut names = Interner::default();
        let one = names.intern(&"shop".into());
        assert!(Arc::ptr_eq(&one, &names.intern(&"shop".into())));
    }

    #[test]
    fn names_that_come_and_go_leave_nothing_behind() {
        let mut names = Interner::default();
        let kept = names.intern(&"shop".into());
        for number in 0..10_000 {
            names.intern(&format!("preview-{number}").into());
        }
        assert!(names.names.len() <= FEW, "{}", names.names.len());
        assert!(Arc::ptr_eq(&kept, &names.intern(&"shop".into())));
    }
}
