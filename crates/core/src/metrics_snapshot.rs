//! How a replica stands at one moment, in figures: what `/metrics` shows beside what was counted.

use std::time::Duration;

use crate::{clocks::Now, index::sources::FollowerCount, lease_status::State, replica::Replica};

/// The figures of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsSnapshot {
    /// Whether it has seen enough to act.
    pub ready: bool,
    /// The term that it leads under, if it does.
    pub leads: Option<i64>,
    /// The highest term that it knows of.
    pub term: i64,
    /// How many leases are in each state, `None` being those that wait for their grant.
    pub leases: Vec<(Option<State>, usize)>,
    /// Ended leases whose release is hindered.
    pub hindered: usize,
    /// What leases follow, of each kind of source.
    pub followed: Vec<FollowerCount>,
    /// For how long the first lease that is due has been due; zero: none is.
    pub overdue: Duration,
    /// Objects that are attached as a whole.
    pub objects: usize,
    /// Keys that are attached.
    pub keys: usize,
    /// Objects attached to a lease that isn't there.
    pub pending: usize,
    /// Work that waits or is under way.
    pub queued: usize,
    /// Requests under way.
    pub in_flight: usize,
    /// How long ago the API server was heard.
    pub since_last_response: Duration,
    /// Whether lease time stands still.
    pub disconnected: bool,
}

impl MetricsSnapshot {
    /// Takes the figures. Counts every lease and attached object, so it is nothing for a hot path.
    pub fn of(replica: &mut Replica, now: &Now) -> Self {
        let mut leases: Vec<(Option<State>, usize)> =
            [None].into_iter().chain(State::ALL.map(Some)).map(|state| (state, 0)).collect();
        let mut hindered = 0;
        for (_, entry) in replica.leases().iter() {
            let status = &entry.record.status;
            if let Some((_, count)) = leases.iter_mut().find(|(state, _)| *state == status.state()) {
                *count += 1;
            }
            hindered += usize::from(status.is_hindered());
        }
        let mut figures = Self {
            ready: replica.is_ready(),
            leads: replica.leads(),
            term: replica.highest_term(),
            leases,
            hindered,
            followed: replica.follows().counts().to_vec(),
            overdue: replica.overdue(now),
            queued: replica.queued(),
            in_flight: replica.in_flight(),
            since_last_response: now.since_last_response,
            disconnected: now.disconnected,
            ..Self::default()
        };
        for (object, pending) in replica.attached() {
            figures.objects += usize::from(object.whole.is_some());
            figures.keys += object.keys().len();
            figures.pending += usize::from(pending);
        }
        figures
    }
}
