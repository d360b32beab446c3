//! The rules (CEL) that the API server enforces for every client.
//!
//! Those that compare with `oldSelf` stand at the root of the schema: at `.status` the API server evaluates no rule when a
//! write drops `status` as a whole.

pub(crate) const TERM_RULE: &str = "!has(oldSelf.status) || !has(oldSelf.status.term) || (has(self.status) && has(self.status.term) \
                         && self.status.term >= oldSelf.status.term)";
/// As [`TERM_RULE`], for leases. A status that was written for another lease may be replaced: a backup tool has restored it.
pub(crate) const LEASE_TERM_RULE: &str = "!has(oldSelf.status) || !has(oldSelf.status.term) || (has(self.status) && ((has(self.status.term) \
                               && self.status.term >= oldSelf.status.term) || (has(oldSelf.status.leaseUID) \
                               && has(self.status.leaseUID) && self.status.leaseUID != oldSelf.status.leaseUID)))";
pub(crate) const END_TIME_RULE: &str = "!has(oldSelf.status) || !has(oldSelf.status.endTime) || (has(self.status) \
                             && ((has(self.status.endTime) && self.status.endTime == oldSelf.status.endTime) \
                             || (has(oldSelf.status.leaseUID) && has(self.status.leaseUID) \
                             && self.status.leaseUID != oldSelf.status.leaseUID)))";
pub(crate) const END_TIME_MESSAGE: &str = "status.endTime, once set, never changes: the lease has ended";
pub(crate) const FROZEN_RULE: &str =
    "!has(oldSelf.status) || !has(oldSelf.status.endTime) || self.spec == oldSelf.spec";
pub(crate) const RENEW_TIME_RULE: &str = "!has(oldSelf.spec.renewTime) || has(self.spec.renewTime)";
pub(crate) const RENEW_TIME_MESSAGE: &str =
    "spec.renewTime, once set, can't be removed: change it to renew the lease";
pub(crate) const ONE_SOURCE_RULE: &str =
    "[has(self.coordinationLease), has(self.node), has(self.pod), has(self.lease)].exists_one(given, given)";
pub(crate) const ONE_SOURCE_MESSAGE: &str = "name exactly one source: coordinationLease, node, pod or lease";
pub(crate) const SOURCE_NAME_RULE: &str = "self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')";
pub(crate) const SOURCE_NAME_MESSAGE: &str =
    "must be a name without a namespace: a source is in the namespace of the lease";
pub(crate) const UID_RULE: &str = "self.matches(r'^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')";
pub(crate) const UID_MESSAGE: &str = "must be a uid like 0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10";
