//! What a replica has done or seen, to be counted. Each deed is one that the API server confirmed: what was only tried
//! is no deed.

use std::time::Duration;

use crate::index::sources::SourceKind;

/// Something to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricEvent {
    /// A lease was granted.
    Granted,
    /// A holder renewed a lease. Only the primary counts these, so that replicas add up.
    Renewed,
    /// A source of this kind had a beat, which renewed so many leases. Only the primary counts these.
    Followed(SourceKind, usize),
    /// The end of a lease by time was committed, this long after its deadline.
    Expired(Duration),
    /// The end of a lease by revoke was committed.
    Revoked,
    /// The last of what was attached to a lease that ended by time is gone, this long after its deadline.
    Emptied(Duration),
    /// The finalizer of an ended lease is gone.
    Released,
    /// An attached object was removed.
    RemovedObject,
    /// So many keys of an attached object were removed.
    RemovedKeys(usize),
    /// Something attached to an ended lease can't be removed, for this reason.
    Hindered(&'static str),
    /// A status that was merely to be brought up to date was left for later: the budget was spent.
    Postponed,
    /// This replica became primary.
    Promoted,
    /// This replica is primary no more.
    Demoted,
}
