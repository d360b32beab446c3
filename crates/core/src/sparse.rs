//! An optional part that few of many values have.

/// Boxed; costs one pointer while it equals its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sparse<T>(Option<Box<T>>);

impl<T: Default + PartialEq> Sparse<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self((value != T::default()).then(|| Box::new(value)))
    }

    /// The value; `None` while it equals its default.
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Changes the value.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.0.take().map(|value| *value).unwrap_or_default();
        let result = change(&mut value);
        *self = Self::new(value);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_value_costs_one_pointer() {
        let mut sparse = Sparse::<[u64; 8]>::default();
        assert_eq!(size_of_val(&sparse), size_of::<usize>());
        sparse.change(|value| value[3] = 4);
        assert_eq!(sparse.get().map(|value| value[3]), Some(4));
        sparse.change(|value| value[3] = 0);
        assert_eq!(sparse, Sparse::default());
        assert_eq!(sparse.get(), None);
    }
}
