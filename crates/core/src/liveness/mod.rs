//! Whether the API server is there and can write, as far as this replica has to find out by requests of its own.
//!
//! Lease time is paused while the API server can't be reached or can't write, so that an outage ends no lease. The runtime
//! measures that from requests and watches. At rest there are none, so this replica has to send some:
//!
//! - a **probe**, a read of the `Lessor`: while it is disconnected; for a while after an outage; and as a follower that misses
//!   the primary's write at a deadline. The first of these is no read but a challenge, written into the `Lessor`: a primary that
//!   lives answers, and a write that fails shows that holders can't renew;
//! - a **write proof**: shortly before a deadline the primary writes something, if only a proof that it leads. A read shows
//!   nothing about writes, and holders renew by writing.

use std::time::Duration;

use lease_engine::LeaseTime;

use crate::{
    clocks::Now,
    decide::expiry::{self, RECENT},
    index::leases::LeaseIndex,
};

/// The least time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// After an outage longer than this, probes are sent for a while.
const LONG_OUTAGE: Duration = Duration::from_secs(5);
/// For how long. An API server may send nothing on a watch for a minute.
const WATCHFUL_FOR: Duration = Duration::from_secs(60);
/// How late a write of the primary may reach a follower.
const LATE: Duration = Duration::from_millis(500);

/// What a follower has observed of the primary.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    /// When it last observed a write of it.
    pub at: Duration,
    /// How long it waits for another while a lease is due.
    pub patience: Duration,
}

/// When to probe, and when to prove that the API server writes.
#[derive(Clone, Debug, Default, Hash)]
pub struct Liveness {
    /// When this replica last sent a probe, or received the response to one.
    probed_at: Duration,
    /// When the last accepted write of a lease or of the `Lessor` was sent.
    last_write: Duration,
    /// The paused time when this replica was last connected.
    paused: Duration,
    /// Until when probes are sent after an outage.
    watchful_until: Duration,
    /// When this replica was last polled while connected.
    connected_at: Duration,
    /// For how long it was disconnected since it last took notice of that.
    lost: Duration,
}

impl Liveness {
    /// Reads the clocks. To be called before anything is decided by them.
    ///
    /// A pause counts from the last response, which may have arrived a minute before: at rest there are none. Where outages
    /// recur (a proxy that cuts silent connections), time must pass nevertheless, so probes are sent for a while after each.
    /// A pause of a second or two, as a busy server causes, doesn't count.
    pub fn poll(&mut self, now: &Now) {
        if now.disconnected {
            return;
        }
        let paused = now.paused();
        if paused > self.paused {
            self.lost += now.mono.saturating_sub(self.connected_at);
        }
        self.connected_at = now.mono;
        let least = if now.mono < self.watchful_until { Duration::ZERO } else { LONG_OUTAGE };
        if paused > self.paused + least {
            self.watchful_until = now.mono + WATCHFUL_FOR;
        }
        self.paused = paused;
    }

    /// For how long this replica was disconnected since the last call.
    pub fn take_lost(&mut self, now: &Now) -> Duration {
        self.poll(now);
        std::mem::take(&mut self.lost)
    }

    // --- Probes --------------------------------------------------------------------------------------------------

    /// When to send a probe if nothing happens before; `None`: never. `asked`: when the last request for our own kinds in
    /// flight was sent. `followed`: `None`, if this replica doesn't follow a primary, which has to write something at each
    /// deadline.
    ///
    /// A follower probes when it misses that write: an API server that hangs must not be taken for a primary that has died,
    /// and then for holders that have.
    pub fn probe_at(
        &self,
        asked: Option<Duration>,
        followed: Option<Followed>,
        leases: &mut LeaseIndex,
        now: &Now,
    ) -> Option<Duration> {
        let again = asked.unwrap_or_default().max(self.probed_at) + PROBE_INTERVAL;
        // A request in flight doesn't stop a probe: the API server may just be slow.
        if now.disconnected {
            return Some(again);
        }
        let last_response = now.mono.saturating_sub(now.since_last_response);
        if now.mono < self.watchful_until && leases.next_due().is_some() {
            return Some(match asked {
                // Where each response takes longer than a second, time passes only if requests overlap. One that is never
                // answered must not let the next follow each answer at once.
                Some(asked) => asked.max(self.probed_at) + PROBE_INTERVAL / 2,
                None => again.max(last_response + PROBE_INTERVAL),
            });
        }
        let followed = followed.filter(|_| asked.is_none())?;
        let deadline = match leases.first_due(now.lease + LATE) {
            Some((_, deadline)) => deadline,
            None => leases.next_due()?,
        };
        // The primary writes a second before the deadline, and then the end.
        let missed = expiry::mono_of(deadline - LATE, now);
        let silent = if self.probed_at >= followed.at {
            // After a challenge there is nothing of the primary to wait for.
            again.max(last_response + PROBE_INTERVAL)
        } else if missed <= followed.at + RECENT {
            // It was punctual. If it can't end the lease it writes again.
            followed.at + followed.patience
        } else {
            missed
        };
        Some(missed.max(silent))
    }

    /// Whether a lease is due, or is in a moment.
    pub fn is_due(&self, leases: &mut LeaseIndex, now: &Now) -> bool {
        leases.first_due(now.lease + LATE).is_some()
    }

    /// A probe was sent, or answered.
    pub fn probed(&mut self, now: &Now) {
        self.probed_at = now.mono;
    }

    // --- Write proofs --------------------------------------------------------------------------------------------

    /// When the last accepted write of a lease or of the `Lessor` was sent.
    pub fn last_write(&self) -> Duration {
        self.last_write
    }

    /// A write of a lease or of the `Lessor` was accepted. Other kinds don't count: they may be stored elsewhere.
    pub fn write_accepted(&mut self, sent_at: Duration) {
        self.last_write = self.last_write.max(sent_at);
    }

    /// Whether the primary has to write something now, if only a proof. Otherwise an outage that a deadline falls into would
    /// be taken for a holder that has died; and followers would challenge it.
    pub fn needs_write_proof(&self, leases: &mut LeaseIndex, now: &Now) -> bool {
        self.lacks_write(now.lease + RECENT, leases, now)
    }

    /// Whether a deadline before `until` needs a write, and the primary has to send it by now.
    fn lacks_write(&self, until: LeaseTime, leases: &mut LeaseIndex, now: &Now) -> bool {
        leases
            .first_due(until)
            .and_then(|(_, deadline)| expiry::write_at(expiry::mono_of(deadline, now), self.last_write))
            .is_some_and(|at| at <= now.mono)
    }

    /// When the primary acts on this deadline, on its clock: first by a write, if one is needed. `None`: it waits for the
    /// response to that write.
    pub fn act_at(&self, deadline: Duration, leases: &mut LeaseIndex, now: &Now) -> Option<Duration> {
        if self.lacks_write(now.lease, leases, now) {
            return None;
        }
        let write_at = expiry::write_at(deadline, self.last_write);
        Some(write_at.filter(|at| *at > now.mono).unwrap_or(deadline))
    }
}
