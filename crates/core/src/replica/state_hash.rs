//! A hash of everything that decides what a replica does next, for the model checker.

use std::hash::{Hash, Hasher};

use super::Replica;

impl Replica {
    /// Hashes everything that decides what this replica does next: two replicas with the same hash do the same.
    ///
    /// Its settings are left out, what users were notified of, and the budget of status refreshes.
    pub fn hash_state(&self, state: &mut impl Hasher) {
        let Self {
            settings: _,
            readiness,
            leadership,
            liveness,
            index,
            schedule,
            requests,
            challenge_refused,
            reporting,
            overlap,
            store,
            out: _,
        } = self;
        index.leases.hash_state(state);
        index.attachments.hash_state(state);
        index.sources.hash_state(state);
        index.watches.hash(state);
        overlap.hash(state);
        readiness.hash_state(state);
        leadership.hash_state(state);
        liveness.hash(state);
        schedule.hash_state(state);
        requests.hash_state(state);
        challenge_refused.hash(state);
        reporting.hash_state(state);
        store.hash(state);
    }
}
