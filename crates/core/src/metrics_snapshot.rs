//! The gauges of `/metrics`.

use std::time::Duration;

use crate::{clocks::Now, index::sources::FollowerCount, lease_status::State, replica::Replica};

/// The gauges of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsSnapshot {
    /// Whether it has observed enough to act.
    pub ready: bool,
    /// How many of the namespaces to serve can't be served, since their leases can't be read.
    pub unserved: usize,
    /// The term that it leads under, if it does.
    pub leads: Option<i64>,
    /// The highest term that it has observed.
    pub term: i64,
    /// How many leases are in each state; `None`: not granted yet.
    pub leases: Vec<(Option<State>, usize)>,
    /// Ended leases whose release is hindered.
    pub hindered: usize,
    /// Followers, by kind of source.
    pub followed: Vec<FollowerCount>,
    /// For how long the first lease that is due has been due; zero: none is.
    pub overdue: Duration,
    /// Objects that are attached as a whole.
    pub objects: usize,
    /// Keys that are attached.
    pub keys: usize,
    /// Objects attached to a lease that doesn't exist.
    pub pending: usize,
    /// Leases and objects with work that is queued or in flight.
    pub queued: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// How long ago the API server last responded.
    pub since_last_response: Duration,
    /// Whether lease time is paused.
    pub disconnected: bool,
}

impl MetricsSnapshot {
    /// Reads the gauges. Counts all leases and attached objects, so it isn't for a hot path.
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
        let mut gauges = Self {
            ready: replica.is_ready(),
            unserved: replica.unserved().count(),
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
            gauges.objects += usize::from(object.whole.is_some());
            gauges.keys += object.keys().len();
            gauges.pending += usize::from(pending);
        }
        gauges
    }
}
