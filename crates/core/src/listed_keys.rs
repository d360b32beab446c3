//! The names of the objects that a watch has listed.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use crate::metadata::NamespacedName;

/// The names of listed objects. Each is kept as a hash of 128 bits under random keys, since there may be very many. A collision
/// among a million names is less likely than a memory fault.
#[derive(Clone, Debug, Default)]
pub struct ListedKeys {
    prints: HashSet<u128>,
    keys: [RandomState; 2],
}

impl ListedKeys {
    /// Adds the object of this name.
    pub fn insert(&mut self, namespace: &str, name: &str) {
        self.prints.insert(self.print(namespace, name));
    }

    /// Removes the object of this name.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        self.prints.remove(&self.print(namespace, name));
    }

    /// Whether the object of this name was listed.
    pub fn contains(&self, place: &NamespacedName) -> bool {
        self.prints.contains(&self.print(&place.namespace, &place.name))
    }

    /// Whether no object was listed.
    pub fn is_empty(&self) -> bool {
        self.prints.is_empty()
    }

    fn print(&self, namespace: &str, name: &str) -> u128 {
        let [high, low] = [0, 1].map(|key: usize| u128::from(self.keys[key].hash_one((namespace, name))));
        high << 64 | low
    }
}

impl FromIterator<NamespacedName> for ListedKeys {
    fn from_iter<I: IntoIterator<Item = NamespacedName>>(places: I) -> Self {
        let mut shown = Self::default();
        places.into_iter().for_each(|place| shown.insert(&place.namespace, &place.name));
        shown
    }
}

impl<const N: usize> From<[NamespacedName; N]> for ListedKeys {
    fn from(places: [NamespacedName; N]) -> Self {
        places.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_name_is_found_and_others_are_not() {
        let mut shown = ListedKeys::default();
        assert!(shown.is_empty());
        shown.insert("shop", "cart");
        shown.insert("shop", "till");
        shown.remove("shop", "till");
        let has = |namespace: &str, name: &str| shown.contains(&NamespacedName::new(namespace, name));
        assert!(has("shop", "cart"));
        assert!(!has("shop", "till") && !has("shopc", "art") && !has("bank", "cart"));
    }
}
