//! What few of very many things have.

/// Lies apart, and takes one word where there is nothing in it: where it is as by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sparse<T>(Option<Box<T>>);

impl<T: Default + PartialEq> Sparse<T> {
    /// Holds this.
    pub fn new(value: T) -> Self {
        Self((value != T::default()).then(|| Box::new(value)))
    }

    /// What there is, if there is anything.
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Changes what there is.
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
    fn what_is_as_by_default_takes_one_word_and_is_nothing() {
        let mut seldom = Sparse::<[u64; 8]>::default();
        assert_eq!(size_of_val(&seldom), size_of::<usize>());
        seldom.change(|value| value[3] = 4);
        assert_eq!(seldom.get().map(|value| value[3]), Some(4));
        seldom.change(|value| value[3] = 0);
        assert_eq!(seldom, Sparse::default());
        assert_eq!(seldom.get(), None);
    }
}
