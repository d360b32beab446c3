//! What a replica knows, boiled down to a number, for whoever explores what replicas can do.

use std::hash::{Hash, Hasher};

use super::Replica;

impl Replica {
    /// Feeds everything that decides what this replica does next: two that feed the same do the same.
    ///
    /// Left out are its settings, what was already said to people, and the budget of mere refreshes of status.
    pub fn digest(&self, state: &mut impl Hasher) {
        self.leases.digest(state);
        self.objects.digest(state);
        self.follows.digest(state);
        self.writer.hash(state);
        self.arbitration.digest(state);
        (&self.timers, &self.unrefreshed).hash(state);
        for (ticket, flight) in &self.flights {
            (ticket, &flight.cause, flight.sent_at).hash(state);
        }
        (&self.leases_seen, &self.sights, &self.kind_report, self.lessor_seen).hash(state);
        (self.next_ticket, self.patient_until, self.leading, self.orphaned).hash(state);
        (self.probed_at, self.shown_at, self.held, self.watchful_until).hash(state);
        (self.read_sources_at, self.stopping, &self.held_by_all, self.saying).hash(state);
    }
}
