//! Names that very many things have, each kept once.

use std::{collections::HashSet, sync::Arc};

/// Below this many, names that nothing has any more aren't looked for.
const FEW: usize = 64;

/// The names, as long as anything has them.
#[derive(Clone, Debug)]
pub(crate) struct Interner {
    names: HashSet<Arc<str>>,
    /// At how many names those are forgotten that nothing has any more.
    sweep_at: usize,
}

impl Default for Interner {
    fn default() -> Self {
        Self { names: HashSet::new(), sweep_at: FEW }
    }
}

impl Interner {
    /// This name, as whatever has it already has it.
    pub(crate) fn one(&mut self, name: &Arc<str>) -> Arc<str> {
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
        let one = names.one(&"shop".into());
        assert!(Arc::ptr_eq(&one, &names.one(&"shop".into())));
    }

    #[test]
    fn names_that_come_and_go_leave_nothing_behind() {
        let mut names = Interner::default();
        let kept = names.one(&"shop".into());
        for number in 0..10_000 {
            names.one(&format!("preview-{number}").into());
        }
        assert!(names.names.len() <= FEW, "{}", names.names.len());
        assert!(Arc::ptr_eq(&kept, &names.one(&"shop".into())));
    }
}
