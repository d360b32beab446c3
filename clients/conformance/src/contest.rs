//! What workers that contend for one mutex did, and whether they may. Pure.

use std::{fmt, time::Duration};

use crate::clock::{Moment, lag};

/// By how much two reads of the clocks may differ.
const PRECISION: Duration = Duration::from_millis(5);

/// One worker's hold of the mutex.
#[derive(Clone, Debug)]
pub struct Holding {
    /// Which worker.
    pub worker: String,
    /// Its fencing token, if its client has one.
    pub token: Option<i64>,
    /// When the client began to believe.
    pub acquired: Moment,
    /// When it last believed.
    pub believed: Moment,
    /// How it ended, and when.
    pub end: Option<(End, Moment)>,
}

/// How a hold has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The worker released it, which the API server has accepted by then.
    Released,
    /// The worker was killed.
    Killed,
    /// The client lost it.
    Lost,
}

/// A time in which something else was broken.
#[derive(Clone, Copy, Debug)]
pub struct Disturbance {
    /// When it began.
    pub start: Moment,
    /// When it was over, with all that follows from it.
    pub end: Moment,
}

/// What the contest has shown.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How often the mutex was acquired.
    pub holdings: usize,
    /// What may not be.
    pub violations: Vec<String>,
    /// From the answer to a release until the next holder, where nothing else was broken.
    pub after_release: Vec<Duration>,
    /// From a crash of the holder until the next, where nothing else was broken.
    pub after_crash: Vec<Duration>,
    /// Until the next holder, at any other time.
    pub disturbed: Vec<Duration>,
    /// Of those, how often two workers believed at once.
    pub overlaps: usize,
}

/// Bounds of what is judged.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From the answer to a release until the next holder.
    pub release: Duration,
    /// From a crash until the next holder.
    pub crash: Duration,
}

/// Judges holds of one mutex.
pub fn judge(mut holdings: Vec<Holding>, disturbances: &[Disturbance], bounds: Bounds) -> Report {
    holdings.sort_by_key(|holding| holding.acquired);
    let mut report = Report { holdings: holdings.len(), ..Report::default() };
    for pair in holdings.windows(2) {
        let [before, next] = pair else { continue };
        if before.believed > next.acquired + PRECISION && before.worker != next.worker {
            report.overlaps += 1;
            report.violations.push(format!(
                "{} believed {} after {} had acquired the mutex",
                before.worker,
                lag(before.believed, next.acquired),
                next.worker
            ));
        }
        if let (Some(first), Some(second)) = (before.token, next.token)
            && second <= first
        {
            report.violations.push(format!("the token {second} of {} follows {first}", next.worker));
        }
        let Some((end, at)) = before.end else { continue };
        let gap = next.acquired.since(at);
        let is_disturbed = disturbances.iter().any(|other| other.start < next.acquired && at < other.end);
        let (list, bound) = match end {
            _ if is_disturbed => (&mut report.disturbed, None),
            End::Released => (&mut report.after_release, Some(bounds.release)),
            End::Killed => (&mut report.after_crash, Some(bounds.crash)),
            End::Lost => (&mut report.disturbed, None),
        };
        list.push(gap);
        if let Some(bound) = bound.filter(|bound| gap > *bound) {
            report.violations.push(format!(
                "{} acquired the mutex {gap:.1?} after {end:?} by {}, which is more than {bound:?}",
                next.worker, before.worker
            ));
        }
    }
    report
}

/// Median, 99th percentile and greatest of some durations.
#[derive(Debug)]
pub struct Spread(Vec<Duration>);

impl Spread {
    /// The spread of these.
    pub fn of(durations: &[Duration]) -> Self {
        let mut durations = durations.to_vec();
        durations.sort();
        Self(durations)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.0.len().checked_sub(1) else { return f.write_str("never") };
        let at = |share: f64| self.0[(last as f64 * share).round() as usize].as_secs_f64();
        write!(f, "{:.2} s, {:.2} s, {:.2} s ({} times)", at(0.5), at(0.99), at(1.0), self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { release: Duration::from_secs(1), crash: Duration::from_secs(9) };

    fn holding(start: Moment, worker: &str, token: i64, from: f64, to: f64, end: End) -> Holding {
        let at = |second: f64| start + Duration::from_secs_f64(second);
        let (acquired, believed) = (at(from), at(to));
        Holding {
            worker: worker.to_owned(),
            token: Some(token),
            acquired,
            believed,
            end: Some((end, believed)),
        }
    }

    #[test]
    fn two_that_believe_at_once_are_found_and_so_is_a_token_that_does_not_grow() {
        let start = Moment::now();
        let first = holding(start, "a", 1, 0.0, 2.0, End::Released);
        let second = holding(start, "b", 2, 2.5, 3.0, End::Released);
        let report = judge(vec![second.clone(), first.clone()], &[], BOUNDS);
        assert!(report.violations.is_empty() && report.after_release.len() == 1, "{report:?}");
        let early = Holding { acquired: first.acquired + Duration::from_secs(1), token: Some(1), ..second };
        let report = judge(vec![first, early], &[], BOUNDS);
        assert_eq!((report.overlaps, report.violations.len()), (1, 2), "{report:?}");
    }

    #[test]
    fn a_slow_hand_over_counts_only_where_nothing_else_was_broken() {
        let start = Moment::now();
        let held = vec![
            holding(start, "a", 1, 0.0, 1.0, End::Killed),
            holding(start, "b", 2, 12.0, 13.0, End::Released),
        ];
        assert_eq!(judge(held.clone(), &[], BOUNDS).violations.len(), 1);
        let outage = Disturbance { start, end: start + Duration::from_secs(5) };
        assert!(judge(held, &[outage], BOUNDS).violations.is_empty());
    }
}
