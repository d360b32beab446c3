//! Whether the API server is there and can write, as far as this replica has to find out by requests of its own.
//!
//! Lease time is paused while the API server can't be reached or can't write, so that an outage ends no lease. The runtime
//! measures that from requests and watches. At rest there are none, so this replica has to send some:
//!
//! - a **probe**, a read of the `Lessor`: while it is disconnected; as a follower that misses the primary's write at a
//!   deadline; and for a while after an outage;
//! - a **write proof**: shortly before a deadline the primary writes something, if only a proof that it leads. A read shows
//!   nothing about writes, and holders renew by writing.

mod shared_pause;

use std::time::Duration;

use lease_engine::LeaseTime;

pub use self::shared_pause::SharedPause;
use crate::{
    clocks::Now,
    decide::expiry::{self, RECENT},
    index::leases::LeaseIndex,
    leadership::election::Known,
};

/// The least time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// After an outage longer than this, probes are sent for a while.
const LONG_OUTAGE: Duration = Duration::from_secs(5);
/// For how long. An API server may send nothing on a watch for a minute.
const WATCHFUL_FOR: Duration = Duration::from_secs(60);
/// How late a write of the primary may reach a follower.
const LATE: Duration = Duration::from_millis(500);

/// When to probe and when to prove that the API server writes; how long lease time was paused.
#[derive(Clone, Debug, Default, Hash)]
pub struct Liveness {
    /// When this replica last sent a probe, or received the response to one.
    probed_at: Duration,
    /// When the last accepted write of a lease or of the `Lessor` was sent.
    last_write: Duration,
    /// The paused time when this replica was last connected, without what other replicas reported since.
    paused: Duration,
    /// Until when probes are sent after an outage.
    watchful_until: Duration,
    /// How long nothing could be written, as replicas share it; `None` before the `Lessor` was observed.
    shared_pause: Option<SharedPause>,
    /// How much of it this replica had found out when it last wrote the `Lessor`.
    publishing: Duration,
}

impl Liveness {
    /// Reads the clocks. To be called before anything is decided by them.
    ///
    /// A pause counts from the last response, which may have arrived a minute before: at rest there are none. Where outages
    /// recur (a proxy that cuts silent connections), time must pass nevertheless, so probes are sent for a while after each.
    /// A pause of a second or two, as a busy server causes, doesn't count.
    pub fn poll(&mut self, now: &Now) {
        if let Some(shared) = &mut self.shared_pause {
            shared.note(now);
        }
        if now.disconnected {
            return;
        }
        let paused = now.paused();
        let least = if now.mono < self.watchful_until { Duration::ZERO } else { LONG_OUTAGE };
        if paused > self.paused + least {
            self.watchful_until = now.mono + WATCHFUL_FOR;
        }
        self.paused = paused;
    }

    // --- Probes --------------------------------------------------------------------------------------------------

    /// When to send a probe if nothing happens before; `None`: never. `asked`: when the last request for our own kinds in
    /// flight was sent. `follows`: whether another replica has to write something at each deadline.
    ///
    /// A follower probes when it misses that write: an API server that hangs must not be taken for a primary that has died,
    /// and then for holders that have.
    pub fn probe_at(
        &self,
        asked: Option<Duration>,
        follows: bool,
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
            return Some(again.max(last_response + PROBE_INTERVAL));
        }
        if asked.is_some() || !follows {
            return None;
        }
        let deadline = match leases.first_due(now.lease + LATE) {
            Some((_, deadline)) => deadline,
            None => leases.next_due()?,
        };
        // The primary writes a second before the deadline, and then the end.
        let missed = now.mono + (deadline - LATE).since(now.lease);
        // After a probe there is nothing of the primary to wait for.
        let silent = if last_response > self.probed_at { last_response + RECENT + LATE } else { again };
        Some(missed.max(silent))
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
    /// be taken for a holder that has died; and followers wouldn't learn of a pause before they take over, half a lease
    /// duration after a deadline.
    pub fn needs_write_proof(&self, lessor_exists: bool, leases: &mut LeaseIndex, now: &Now) -> bool {
        self.lacks_write(now.lease + RECENT, leases, now)
            // A `Lessor` that doesn't exist is created anyway.
            || lessor_exists && self.shared_pause.as_ref().is_some_and(|shared| shared.unpublished(now) > LATE)
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

    // --- The shared pause ----------------------------------------------------------------------------------------

    /// How long altogether nothing could be written, to be published in the `Lessor`.
    pub fn shared_pause(&self, now: &Now) -> Duration {
        self.shared_pause.as_ref().map_or(Duration::ZERO, |shared| shared.total(now))
    }

    /// A write of the `Lessor` is being sent, with the [shared pause](Self::shared_pause).
    pub fn publishes(&mut self, now: &Now) {
        self.publishing = now.paused_unwritable;
    }

    /// That write was accepted, whether or not the installed definition has the field.
    pub fn published(&mut self, sent_at: Duration) {
        self.write_accepted(sent_at);
        if let Some(shared) = &mut self.shared_pause {
            shared.published(self.publishing);
        }
    }

    /// The kind `Lessor` isn't installed, so there is no other replica to inform.
    pub fn lessor_crd_missing(&mut self, sent_at: Duration, now: &Now) {
        self.write_accepted(sent_at);
        if let Some(shared) = &mut self.shared_pause {
            shared.published(now.paused_unwritable);
        }
    }

    /// Applies the sum that a new version of the `Lessor` shows. Returns how much of it lease time still has to pause.
    pub fn observe_lessor(&mut self, known: &Known, is_own: bool, now: &Now) -> Duration {
        match &mut self.shared_pause {
            Some(shared) if is_own => {
                shared.observe_own(known, now);
                Duration::ZERO
            }
            Some(shared) => {
                let missed = shared.observe(known, now);
                // This isn't an outage of this replica's own.
                self.paused += missed;
                missed
            }
            none => {
                *none = Some(SharedPause::new(known, now));
                Duration::ZERO
            }
        }
    }
}
