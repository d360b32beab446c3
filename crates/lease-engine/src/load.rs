//! How many renewals come, and what that makes of a TTL.

use super::{Stretch, Ttl};

/// Counts renewals per second of lease time: the last full second, and the one that runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    second: u64,
    running: u32,
    last: u32,
}

impl Load {
    pub(super) fn count(&mut self, now_millis: u64) {
        let second = now_millis / 1000;
        if second != self.second {
            self.last = if second == self.second + 1 { self.running } else { 0 };
            self.second = second;
            self.running = 0;
        }
        self.running = self.running.saturating_add(1);
    }

    /// The TTL that this load makes of `ttl`: never shorter, and not above `max`.
    pub(super) fn stretch(&self, ttl: Ttl, policy: &Stretch, max: Ttl) -> Ttl {
        let rate = u128::from(self.last.max(self.running));
        let bearable = u128::from(policy.renewals_per_second.max(1));
        if rate <= bearable {
            return ttl;
        }
        let asked = u128::from(ttl.as_millis());
        let stretched = (asked * rate / bearable).min(asked * u128::from(policy.at_most));
        let stretched = Ttl::from_millis(u64::try_from(stretched).unwrap_or(u64::MAX));
        stretched.min(max).max(ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Stretch = Stretch { renewals_per_second: 10, at_most: 3 };

    fn granted_under(renewals: u32) -> u64 {
        let mut load = Load::default();
        (0..renewals).for_each(|_| load.count(5000));
        load.stretch(Ttl::from_millis(1000), &POLICY, Ttl::MAX).as_millis()
    }

    #[test]
    fn ttls_grow_with_the_load_up_to_the_factor() {
        assert_eq!([0, 10, 15, 20, 500].map(granted_under), [1000, 1000, 1500, 2000, 3000]);
    }

    #[test]
    fn load_is_forgotten_after_a_quiet_second() {
        let mut load = Load::default();
        (0..20).for_each(|_| load.count(5000));
        load.count(6000);
        assert_eq!(load.stretch(Ttl::from_millis(1000), &POLICY, Ttl::MAX).as_millis(), 2000);
        load.count(8000);
        assert_eq!(load.stretch(Ttl::from_millis(1000), &POLICY, Ttl::MAX).as_millis(), 1000);
    }

    #[test]
    fn nothing_is_stretched_above_the_maximum() {
        let mut load = Load::default();
        (0..50).for_each(|_| load.count(5000));
        let max = Ttl::from_millis(1200);
        assert_eq!(load.stretch(Ttl::from_millis(1000), &POLICY, max), max);
    }
}
