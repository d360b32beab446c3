//! Leases in words.

use anstyle::Style;
use lessor_api::{Attached, Lease, LeaseName, duration::abbreviated, time};
use lessor_client::{LeaseSnapshot, SnapshotState};
use serde_json::Value;

use crate::{
    error::{CliError, CliResult, OTHER},
    style::{GREEN, RED, YELLOW},
};

/// A lease's name in kubectl's notation.
pub(crate) fn full_name(name: &str) -> String {
    format!("lease.lessor.dev/{name}")
}

/// The name of a lease; empty if there is none.
pub(crate) fn name_of(lease: &Lease) -> &str {
    lease.metadata.name.as_deref().unwrap_or_default()
}

/// Parses the name of a lease.
pub(crate) fn lease_name(name: &str) -> CliResult<LeaseName> {
    LeaseName::parse(name)
        .map_err(|reason| CliError::new(OTHER, format!("invalid lease name {name:?}: {reason}")))
}

/// The style of a state.
pub(crate) fn state_style(state: SnapshotState) -> Style {
    match state {
        SnapshotState::Granted => GREEN,
        SnapshotState::Pending | SnapshotState::Suspended | SnapshotState::Revoking => YELLOW,
        SnapshotState::Expired | SnapshotState::Revoked => RED,
    }
}

/// A lease in one sentence: `granted for 30s, 12s left, held by web-1`.
pub(crate) fn describe(snapshot: &LeaseSnapshot) -> String {
    let mut parts = Vec::new();
    let ttl = snapshot.granted_ttl().map(abbreviated).unwrap_or_default();
    let left = snapshot.remaining().map(|left| format!("{} left", abbreviated(left)));
    match snapshot.state() {
        SnapshotState::Pending => parts.push("not granted yet".to_owned()),
        SnapshotState::Granted => {
            parts.push(format!("granted for {ttl}"));
            parts.extend(left);
        }
        SnapshotState::Suspended => {
            parts.push(format!("granted for {ttl}, suspended"));
            parts.extend(left);
        }
        SnapshotState::Revoking => parts.push("being revoked".to_owned()),
        SnapshotState::Expired => parts.push(ended("expired", snapshot)),
        SnapshotState::Revoked => parts.push(ended("revoked", snapshot)),
    }
    parts.extend(source(snapshot));
    parts.extend(snapshot.lease.spec.holder.as_ref().map(|holder| format!("held by {holder}")));
    parts.join(", ")
}

/// `expired 1s ago`.
fn ended(how: &str, snapshot: &LeaseSnapshot) -> String {
    let end = snapshot.lease.status.as_ref().and_then(|status| status.end_time.as_ref());
    end.map_or_else(
        || how.to_owned(),
        |end| format!("{how} {} ago", abbreviated(time::between(end.0, snapshot.now))),
    )
}

/// `follows node/a`, and the reason if the source doesn't keep the lease alive.
fn source(snapshot: &LeaseSnapshot) -> Option<String> {
    let source = snapshot.follows()?;
    let inactive = snapshot.following().filter(|following| following.status != "True");
    Some(inactive.map_or_else(
        || format!("follows {source}"),
        |following| format!("follows {source}, which doesn't keep it alive ({})", following.reason),
    ))
}

/// How much is attached: `2 objects, 1 key`; empty if nothing is.
pub(crate) fn attached_counts(attached: Option<Attached>) -> String {
    let count = |count: i64, noun: &str| match count {
        0 => None,
        1 => Some(format!("1 {noun}")),
        _ => Some(format!("{count} {noun}s")),
    };
    let Attached { objects, keys } = attached.unwrap_or_default();
    [count(objects, "object"), count(keys, "key")].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A lease as JSON without `metadata.managedFields`.
pub(crate) fn json_of(lease: &Lease) -> CliResult<Value> {
    let mut lease = lease.clone();
    lease.metadata.managed_fields = None;
    Ok(serde_json::to_value(lease)?)
}
