//! What a replica knows, boiled down to a number, for whoever explores what replicas can do.

use std::hash::{Hash, Hasher};

use super::Replica;

impl Replica {
    /// Feeds everything that decides what this replica does next: two that feed the same do the same.
    ///
    /// Left out are its settings, what was already said to people, and the budget of mere refreshes of status.
    pub fn hash_state(&self, state: &mut impl Hasher) {
        self.leases.hash_state(state);
        self.objects.hash_state(state);
        self.follows.hash_state(state);
        self.writer.hash(state);
        self.election.hash_state(state);
        (&self.timers, &self.unrefreshed).hash(state);
        for (ticket, flight) in &self.in_flight {
            (ticket, &flight.cause, flight.sent_at).hash(state);
        }
        (&self.leases_seen, &self.watch_health, &self.kind_report, self.lessor_seen).hash(state);
        (self.next_ticket, self.patient_until, self.leading, self.lessor_crd_missing).hash(state);
        (self.probed_at, self.shown_at, self.held, self.watchful_until).hash(state);
        (self.read_sources_at, self.stopping, &self.shared_pause, self.saying).hash(state);
    }
}
