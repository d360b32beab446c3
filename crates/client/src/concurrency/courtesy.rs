//! Letting others go first. A session that locks again as soon as it has unlocked is faster than all that wait: those learn
//! of the deletion by a watch.

use std::{collections::HashMap, time::Duration};

use crate::boot_instant::BootInstant;

/// A session that has held a lock for this long lets others go first.
const MAX_STREAK: Duration = Duration::from_secs(1);
/// The longest pause between two holds of one streak.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The locks that a session has released lately: since when it had held each, and until when.
#[derive(Debug, Default)]
pub(super) struct Streaks(HashMap<String, Streak>);

#[derive(Clone, Copy, Debug)]
struct Streak {
    began: BootInstant,
    ended: BootInstant,
}

impl Streaks {
    /// A lock that was acquired at `acquired` is released now.
    pub(super) fn released(&mut self, object: &str, acquired: BootInstant) {
        let lasts = |streak: &Streak| acquired.duration_since(streak.ended) <= MAX_PAUSE;
        self.0.retain(|_, streak| lasts(streak));
        let began = self.0.get(object).map_or(acquired, |streak| streak.began);
        self.0.insert(object.to_owned(), Streak { began, ended: BootInstant::now() });
    }

    /// How long to wait before the lock is acquired again.
    pub(super) fn pause(&mut self, object: &str) -> Duration {
        let Some(streak) = self.0.get(object).copied() else { return Duration::ZERO };
        let since = streak.ended.elapsed();
        if since > MAX_PAUSE || streak.ended.duration_since(streak.began) < MAX_STREAK {
            return Duration::ZERO;
        }
        self.0.remove(object);
        Duration::from_millis(fastrand::u64(100..=200)).saturating_sub(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_session_that_has_held_a_lock_for_a_second_waits_before_it_locks_again() {
        let mut streaks = Streaks::default();
        let mut hold = async |length: u64, pause: u64| {
            let acquired = BootInstant::now();
            tokio::time::advance(Duration::from_millis(length)).await;
            streaks.released("lock.a", acquired);
            tokio::time::advance(Duration::from_millis(pause)).await;
            streaks.pause("lock.a")
        };
        assert_eq!(hold(400, 10).await, Duration::ZERO);
        assert_eq!(hold(400, 10).await, Duration::ZERO);
        let pause = hold(400, 10).await;
        assert!((90..=190).contains(&pause.as_millis()), "{pause:?}");
        // It has let others go first.
        assert_eq!(hold(400, 300).await, Duration::ZERO);
        assert_eq!(hold(5_000, 300).await, Duration::ZERO, "after a pause");
    }
}
