//! A budget: so many per second, and what was not used for a second is lost.

use std::time::Duration;

/// A token bucket that holds what one second yields, one token at least.
#[derive(Clone, Debug)]
pub struct Budget {
    per_second: f64,
    tokens: f64,
    counted_at: Duration,
}

impl Budget {
    /// `per_second` tokens; full at the start.
    pub fn new(per_second: f64) -> Self {
        Self { per_second, tokens: per_second.max(1.0), counted_at: Duration::ZERO }
    }

    fn count(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.counted_at).as_secs_f64();
        self.counted_at = self.counted_at.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.per_second.max(1.0));
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Duration) -> bool {
        self.count(now);
        let taken = self.tokens >= 1.0;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }

    /// When the next one can be taken; `None`: never.
    pub fn next_at(&mut self, now: Duration) -> Option<Duration> {
        self.count(now);
        if self.tokens >= 1.0 {
            return Some(now);
        }
        let wait = Duration::try_from_secs_f64((1.0 - self.tokens) / self.per_second).ok()?;
        // A hair more, so that whoever wakes up then finds the token there.
        now.checked_add(wait + Duration::from_micros(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_yields_its_rate_and_saves_no_more_than_a_second() {
        let mut budget = Budget::new(10.0);
        let taken = |budget: &mut Budget, now| (0..100).filter(|_| budget.take(now)).count();
        assert_eq!(taken(&mut budget, Duration::ZERO), 10);
        assert_eq!(taken(&mut budget, Duration::from_millis(500)), 5);
        assert_eq!(taken(&mut budget, Duration::from_secs(60)), 10);
    }

    #[test]
    fn whoever_waits_until_the_next_token_finds_it() {
        let mut budget = Budget::new(3.0);
        while budget.take(Duration::ZERO) {}
        let at = budget.next_at(Duration::ZERO).expect("a time");
        assert!(at > Duration::ZERO && budget.take(at));
    }

    #[test]
    fn a_rate_of_nothing_yields_one_and_never_another() {
        let mut budget = Budget::new(0.0);
        assert!(budget.take(Duration::ZERO));
        assert_eq!(budget.next_at(Duration::from_secs(9)), None);
    }
}
