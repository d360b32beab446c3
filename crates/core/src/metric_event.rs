//! Events to be counted as metrics. Those of writes are emitted only after the API server accepted the write.

use std::time::Duration;

use crate::index::sources::SourceKind;

/// An event to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricEvent {
    /// A lease was granted.
    Granted,
    /// A holder renewed a lease. Counted by the primary alone, so that the sum over replicas is right.
    Renewed,
    /// A heartbeat of a source of this kind renewed so many leases. Counted by the primary alone.
    Followed(SourceKind, usize),
    /// A lease expired: its end was committed this long after its deadline.
    Expired(Duration),
    /// A lease was revoked: its end was committed.
    Revoked,
    /// The last attachment of an expired lease is gone, this long after its deadline.
    Emptied(Duration),
    /// The finalizer of an ended lease is gone.
    Released,
    /// An attached object was removed.
    RemovedObject,
    /// So many keys of an attached object were removed.
    RemovedKeys(usize),
    /// An attachment of an ended lease can't be removed, for this reason.
    Hindered(&'static str),
    /// A refresh of a status has to wait for the budget.
    Postponed,
    /// This replica became primary.
    Promoted,
    /// This replica isn't primary any more.
    Demoted,
}
