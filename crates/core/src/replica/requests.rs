//! The requests in flight, and what each is for.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    time::Duration,
};

use lease_engine::LeaseTime;
use lessor_api::lease::Attached;
use uuid::Uuid;

use crate::{
    clocks::Now,
    index::attachments::ObjectId,
    metadata::ResourceVersion,
    output::Output,
    request::{Request, Ticket},
    work::Work,
};

/// What a request is for.
#[derive(Clone, Debug, Hash)]
pub(super) enum Purpose {
    /// The next step of a lease.
    Lease(Uuid, LeaseAction),
    /// The removal of what is due in an object: its version when that was decided, and the leases that it or its keys are
    /// removed with, for users.
    Removal(ObjectId, ResourceVersion, Box<str>),
    /// The election.
    Election,
    /// Whether the API server responds.
    Probe,
    /// Whether work that seems overdue is still undone, before the lead is claimed for it.
    Check(Work),
    /// The condition of the `Lessor` on attachable kinds.
    KindsCondition,
    /// The state of a source that no watch will report by itself.
    Source,
}

/// What a request for a lease does, for users once it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LeaseAction {
    Read,
    /// Reads what it follows, before it ends.
    ReadSource,
    AddFinalizer,
    Grant,
    Publish,
    /// Publishes that it ends soon.
    Warn,
    /// Publishes whether its source keeps it alive.
    Follow,
    /// Commits its end: with its deadline, unless it is revoked, and with what is attached.
    End(Option<LeaseTime>, Attached),
    Release,
    /// Removes its finalizer without an end.
    Abandon,
    Delete,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) purpose: Purpose,
    pub(super) request: Request,
    pub(super) sent_at: Duration,
    /// The version in which what it reads was known when it was sent.
    pub(super) known: ResourceVersion,
    /// Whether the object that it reads or writes was observed to be gone since: an object in its response is an older version.
    pub(super) object_gone: bool,
}

impl InFlight {
    /// No challenge in the `Lessor` that the response to this request carries is older, if it is new to this replica.
    pub(super) fn written_at(&self, now: &Now) -> Duration {
        if let Request::WriteLessor { .. } = self.request { self.sent_at } else { now.mono }
    }
}

/// All requests in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    in_flight: BTreeMap<Ticket, InFlight>,
    last_ticket: Ticket,
    /// The API server asked for patience until then (429).
    throttled_until: Duration,
}

impl Requests {
    /// Sends a request that fails unless it is answered by `by`.
    pub(super) fn send(
        &mut self,
        purpose: Purpose,
        request: Request,
        by: Duration,
        known: ResourceVersion,
        now: &Now,
        out: &mut Output,
    ) {
        self.last_ticket += 1;
        let request_sent = request.clone();
        let in_flight =
            InFlight { purpose, request: request_sent, sent_at: now.mono, known, object_gone: false };
        self.in_flight.insert(self.last_ticket, in_flight);
        out.requests.push((self.last_ticket, request, by));
    }

    /// Takes the request of this ticket; `None`: it was cancelled.
    pub(super) fn answered(&mut self, ticket: Ticket) -> Option<InFlight> {
        self.in_flight.remove(&ticket)
    }

    /// Cancels all [work](Work) in flight, and returns it.
    pub(super) fn cancel_work(&mut self, out: &mut Output) -> Vec<Purpose> {
        let is_work =
            |_: &Ticket, it: &mut InFlight| matches!(it.purpose, Purpose::Lease(..) | Purpose::Removal(..));
        let cancelled = self.in_flight.extract_if(.., is_work);
        let cancelled = cancelled.map(|(ticket, it)| {
            out.cancelled.push(ticket);
            it.purpose
        });
        cancelled.collect()
    }

    /// An object is gone.
    pub(super) fn object_gone(&mut self, id: &ObjectId) {
        for it in self.in_flight.values_mut().filter(|it| it.request.object() == Some(id)) {
            it.object_gone = true;
        }
    }

    /// How many of them read sources that no watch will report by itself.
    pub(super) fn reads_of_sources(&self) -> usize {
        self.in_flight.values().filter(|it| matches!(it.purpose, Purpose::Source)).count()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// When the last of those for our own kinds was sent.
    pub(super) fn last_sent_for_leases(&self) -> Option<Duration> {
        let for_leases = self.in_flight.values().filter(|it| it.request.is_for_leases());
        for_leases.map(|it| it.sent_at).max()
    }

    /// Sends nothing that can wait until then: the API server asked for patience.
    pub(super) fn throttle(&mut self, until: Duration) {
        self.throttled_until = self.throttled_until.max(until);
    }

    /// Until when nothing is sent that can wait.
    pub(super) fn throttled_until(&self) -> Duration {
        self.throttled_until
    }

    /// Whether nothing may be sent now that can wait.
    pub(super) fn is_throttled(&self, now: &Now) -> bool {
        now.mono < self.throttled_until
    }

    /// Hashes everything that decides what comes next.
    pub(super) fn hash_state(&self, state: &mut impl Hasher) {
        for (ticket, it) in &self.in_flight {
            (ticket, &it.purpose, it.sent_at, it.object_gone).hash(state);
        }
        (self.last_ticket, self.throttled_until).hash(state);
    }

    #[cfg(test)]
    pub(super) fn probes(&self) -> Vec<Ticket> {
        let probes = self.in_flight.iter().filter(|(_, it)| matches!(it.purpose, Purpose::Probe));
        probes.map(|(ticket, _)| *ticket).collect()
    }
}
