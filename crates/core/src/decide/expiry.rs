//! May a lease end by time now? [`may_end`] is the only place that answers, and it lists every reason not to.
//!
//! What it is given was gathered elsewhere: the deadline by the engine (after a restart by
//! [`cold_start`](super::cold_start), with the grace period), lease time by the replica's [clocks](Now), which stand still
//! during an outage. No other code changes the answer: [`lease`](super::lease) makes a request of it, and the replica
//! sends that request, later if the API server asks for patience, or not at all.
//!
//! The commit of the end is bound to the version that the decision was made at. So a renewal that arrives after the
//! decision still wins: the API server refuses the end, and the replica decides again.

use std::time::Duration;

use lease_engine::LeaseTime;

use crate::clocks::Now;

/// How old the last response of the API server, and the last accepted write before a deadline, may be at an end.
///
/// An API server that stopped working within this time before a deadline took no more than this much of the holder's
/// time to renew.
pub const RECENT: Duration = Duration::from_secs(1);

/// What a replica knows of a lease whose time may be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// When it ends unless it is renewed; `None` while its time stands still and it has no cap.
    pub deadline: Option<LeaseTime>,
    /// Whether it is over however often it is renewed: `maxLifetimeSeconds` has passed.
    pub capped: bool,
    /// Whether `--expiry-rate` has let it through.
    pub turn: Turn,
    /// When the last accepted write of a lease or of the `Lessor` was sent, on the replica's clock.
    pub last_write: Duration,
    /// Whether what it follows, if anything, was read at or after the deadline.
    pub source_read: bool,
    /// What keeps this replica from ending it at all.
    pub obstacle: Option<Obstacle>,
}

/// Whether it is a lease's turn to end: the primary ends leases in the order of their deadlines, at `--expiry-rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A follower ends nothing: it looks whether the primary does.
    Follower,
    /// On the primary: not yet.
    Waiting,
    /// On the primary: now.
    Reached,
}

/// What keeps a replica from ending a lease at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// In a dry run nothing ends.
    DryRun,
    /// The kind `Lessor` isn't installed, so no replica can be primary. Only revokes are finished, so that no finalizer hangs.
    LessorCrdMissing,
    /// `status.term` is one that no primary wrote, far above all others. The API server would refuse the write.
    AbsurdTerm,
}

/// The answer of [`may_end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// No. It may from this time on, on the replica's clock, if nothing happens before; [`Duration::MAX`]: never.
    NotDue(Duration),
    /// Only after this.
    Need(Need),
    /// Yes.
    End,
    /// Not by this replica, for this reason.
    Never(Obstacle),
}

/// What has to happen before a lease may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The API server has to accept a write that was sent shortly before the deadline or later. It may answer reads while its
    /// storage is full; then no holder can renew.
    Write,
    /// `--expiry-rate` has to let it through.
    Turn,
    /// The API server has to answer: the last response is too old to show that it works.
    Response,
    /// The source that it follows has to be read: a heartbeat may have been accepted that no watch event has reported yet.
    Source,
}

/// Whether a lease may end by time now, and what has to be learned first.
pub fn may_end(evidence: &Evidence, now: &Now) -> Expiry {
    let Some(deadline) = evidence.deadline else { return Expiry::NotDue(Duration::MAX) };
    if deadline > now.lease {
        return Expiry::NotDue(mono_of(deadline, now));
    }
    if evidence.turn == Turn::Waiting {
        let covered = deadline <= covered_until(evidence.last_write, now);
        return Expiry::Need(if covered { Need::Turn } else { Need::Write });
    }
    if let Some(obstacle) = evidence.obstacle {
        return Expiry::Never(obstacle);
    }
    if now.since_last_response > RECENT {
        return Expiry::Need(Need::Response);
    }
    if !evidence.source_read && !evidence.capped {
        return Expiry::Need(Need::Source);
    }
    Expiry::End
}

/// Up to which deadline the last accepted write shows that holders could renew until shortly before it.
pub fn covered_until(last_write: Duration, now: &Now) -> LeaseTime {
    now.lease - now.mono.saturating_sub(last_write + RECENT)
}

/// When the primary has to write something for the sake of a deadline, if only a proof; `None`: the last write suffices.
/// Both on the replica's clock. Without faults, every watcher receives an event within the second before a deadline.
pub fn write_at(deadline: Duration, last_write: Duration) -> Option<Duration> {
    (last_write + RECENT < deadline).then(|| deadline.saturating_sub(RECENT).max(last_write + RECENT / 2))
}

/// When a deadline comes, or came, on the replica's clock, if lease time runs as that does.
pub fn mono_of(deadline: LeaseTime, now: &Now) -> Duration {
    (now.mono + deadline.since(now.lease)).saturating_sub(now.lease.since(deadline))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A deadline at 100 s of lease time, which lags 10 s behind the replica's clock: there was an outage.
    const DUE: Evidence = Evidence {
        deadline: Some(LeaseTime::from_millis(100_000)),
        capped: false,
        turn: Turn::Reached,
        last_write: Duration::from_millis(109_500),
        source_read: true,
        obstacle: None,
    };

    fn at(mono: u64) -> Now {
        let lease = LeaseTime::from_duration(seconds(mono - 10));
        Now { mono: seconds(mono), lease, ..Now::start(Timestamp::UNIX_EPOCH) }
    }

    #[test]
    fn each_case_has_its_answer() {
        let silent = Now { since_last_response: Duration::from_millis(1_001), ..at(110) };
        let waiting = Evidence { turn: Turn::Waiting, ..DUE };
        let unread = Evidence { source_read: false, ..DUE };
        let blocked = |obstacle| Evidence { obstacle: Some(obstacle), ..DUE };
        let old_write = |turn| Evidence { turn, last_write: Duration::from_millis(108_999), ..DUE };
        let cases = [
            ("its time is over", DUE, at(110), Expiry::End),
            ("long ago", DUE, at(1_000), Expiry::End),
            ("one second is left", DUE, at(109), Expiry::NotDue(seconds(110))),
            ("suspended", Evidence { deadline: None, ..DUE }, at(110), Expiry::NotDue(Duration::MAX)),
            ("others come first", waiting, at(110), Expiry::Need(Need::Turn)),
            ("nothing was written since", old_write(Turn::Waiting), at(110), Expiry::Need(Need::Write)),
            ("a follower writes nothing", old_write(Turn::Follower), at(110), Expiry::End),
            ("no recent response", DUE, silent, Expiry::Need(Need::Response)),
            ("no recent response, and a source", unread, silent, Expiry::Need(Need::Response)),
            ("its source may have sent a heartbeat", unread, at(110), Expiry::Need(Need::Source)),
            ("no heartbeat helps", Evidence { capped: true, ..unread }, at(110), Expiry::End),
            ("a dry run", blocked(Obstacle::DryRun), at(110), Expiry::Never(Obstacle::DryRun)),
            ("a dry run, too early", blocked(Obstacle::DryRun), at(109), Expiry::NotDue(seconds(110))),
            (
                "no Lessor",
                blocked(Obstacle::LessorCrdMissing),
                at(110),
                Expiry::Never(Obstacle::LessorCrdMissing),
            ),
            ("a false term", blocked(Obstacle::AbsurdTerm), silent, Expiry::Never(Obstacle::AbsurdTerm)),
        ];
        for (case, evidence, now, expected) in cases {
            assert_eq!(may_end(&evidence, &now), expected, "{case}");
        }
    }

    #[test]
    fn a_write_is_due_within_the_second_before_a_deadline_and_at_most_twice_a_second() {
        assert_eq!(write_at(seconds(100), seconds(99)), None);
        assert_eq!(write_at(seconds(100), seconds(90)), Some(seconds(99)));
        assert_eq!(
            write_at(seconds(100), Duration::from_millis(98_900)),
            Some(Duration::from_millis(99_400))
        );
    }
}
