//! Recovering the time of a lease from its object: what was granted, when, and what is left of it for a replica that has seen
//! nothing of its life.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lease_engine::LeaseTime;
use lessor_api::Recorded;

use crate::{
    clocks::Now,
    decide::lease::{granted_ttl, seconds, whole_seconds},
    lease_object::LeaseObject,
    lease_status::State,
    settings::Settings,
    unix_millis::{from_millis, millis},
};

/// Times of the API are whole seconds, cut: what they show may be almost a second later.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The time of a lease, as its object shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Its TTL.
    pub ttl: Duration,
    /// What is left of it.
    pub remaining: Duration,
    /// When it ends however often it is renewed, if ever.
    pub end_by: Option<LeaseTime>,
}

/// The TTL that its status shows, in seconds.
pub fn published_ttl(record: &LeaseObject) -> Option<i64> {
    record.status.grant.map(|grant| grant.ttl_seconds)
}

/// The TTL that a lease was granted: what is published, even if this replica would have granted another. Replicas may
/// have different settings, for a while at least, and a lease must not end before what its holder was promised.
pub fn ttl_granted(record: &LeaseObject, settings: &Settings) -> Duration {
    let ours = granted_ttl(record.ttl_seconds, settings);
    match published_ttl(record) {
        Some(published) if published != whole_seconds(ours) => seconds(published),
        _ => ours,
    }
}

/// Recovers the time of a lease that was granted before this replica knew of it.
///
/// Its TTL counts from the last renewal as the API server recorded it, by the API server's clock. Whatever of that is
/// unsure makes the deadline later: the resolution of those times, and the skew between the clocks of API servers.
pub fn recover(record: &LeaseObject, recorded: Recorded, now: &Now, settings: &Settings) -> Recovered {
    let mut ttl = ttl_granted(record, settings);
    if recorded.renewed_unseen() {
        // No primary has promised anything since: what is asked for now is granted.
        ttl = granted_ttl(record.ttl_seconds, settings);
    } else if record.status.spec_generation != Some(record.generation) {
        // Perhaps `ttlSeconds` has changed since that was published.
        ttl = ttl.max(granted_ttl(record.ttl_seconds, settings));
    }
    let mut last = granted_at(record, recorded).max(recorded.renewed);
    if record.follow().is_some() {
        // Whatever kept it alive did so no longer than the last time that anybody wrote how it stands with that; if it does
        // so still, it will be seen.
        last = last.max(recorded.published);
    }
    let slack = RESOLUTION + settings.max_clock_skew;
    let mut remaining = match (last, now.server) {
        (Some(last), Some(server)) => (ttl + slack).saturating_sub(elapsed(last, server)),
        _ => ttl,
    };
    let was_suspended = record.status.state() == Some(State::Suspended);
    if was_suspended {
        // Time stood still since that was published, unless a renewal came later.
        let renewed_since = recorded.renewed >= recorded.published;
        remaining = match record.status.remaining_seconds() {
            Some(remaining) if !renewed_since => seconds(remaining),
            _ => ttl,
        };
    } else if record.suspend {
        // Since when it stands still is recorded nowhere.
        remaining = ttl;
    }
    // On a start nobody knows how long holders couldn't renew. A suspended lease lost nothing meanwhile.
    // In lease time: as long as the server hasn't been heard at all, holders can't renew.
    let grace = settings.start_grace.saturating_sub(now.lease.since(LeaseTime::ZERO));
    let remaining = if record.suspend { remaining } else { remaining.max(grace) };
    let end_by = end_by(record, recorded, now, settings).map(|end_by| end_by.max(now.lease + grace));
    Recovered { ttl, remaining, end_by }
}

/// When the lease ends however often it is renewed: later rather than earlier, as far as clocks leave it open.
pub fn end_by(record: &LeaseObject, recorded: Recorded, now: &Now, settings: &Settings) -> Option<LeaseTime> {
    let lifetime = seconds(record.max_lifetime_seconds()?);
    let lived = match (granted_at(record, recorded), now.server) {
        (Some(granted), Some(server)) => elapsed(granted, server),
        _ => Duration::ZERO,
    };
    Some(now.lease + (lifetime + RESOLUTION + settings.max_clock_skew).saturating_sub(lived))
}

fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from).max(SignedDuration::ZERO)).unwrap_or(Duration::ZERO)
}

/// When a lease was granted: the request names when it was asked for, and may have been long on its way.
fn granted_at(record: &LeaseObject, recorded: Recorded) -> Option<Timestamp> {
    record.status.grant.map(|grant| from_millis(grant.time)).max(recorded.granted)
}

/// The time of a grant that was long on its way, to be put in place of the one that was written when it was asked for: people
/// read that, and so do replicas where nothing is recorded.
///
/// It is the API server's own record that counts, not when this replica saw the grant: its watch may be late too.
pub fn granted_by(record: &LeaseObject, recorded: Recorded) -> Option<i64> {
    let (grant, accepted) = (record.status.grant?, recorded.granted?);
    (elapsed(from_millis(grant.time), accepted) > RESOLUTION + RESOLUTION).then(|| millis(accepted))
}

/// The deadline that a published `expiryTime` stands for, as far as this machine's clock agrees with the writer's. It
/// decides when to publish anew, never when to end.
pub fn published_deadline(record: &LeaseObject, now: &Now) -> Option<LeaseTime> {
    let expiry = from_millis(record.status.expiry?);
    Some(now.lease + elapsed(now.wall, expiry))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;

    const TTL: u64 = 20;

    fn second(second: i64) -> Timestamp {
        Timestamp::constant(1_800_000_000, 0) + SignedDuration::from_secs(second)
    }

    /// What remains of a lease at a cold start, in seconds: granted and renewed at these seconds of the server's clock,
    /// seen at second 100, when the replica has run for `mono` seconds and heard the server for `heard`.
    fn remains(granted: i64, renewed: i64, mono: u64, heard: u64) -> u64 {
        remains_of(json!({"ttlSeconds": TTL}), granted, granted, renewed, mono, heard)
    }

    /// The same, for a lease whose grant names the second `asked`, and was accepted at `granted`.
    fn remains_of(spec: Value, asked: i64, granted: i64, renewed: i64, mono: u64, heard: u64) -> u64 {
        let uid = Uuid::from_u128(7);
        let lease = serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": "cart", "uid": uid.to_string(), "resourceVersion": "1", "generation": 1,
            },
            "spec": spec,
            "status": {
                "specGeneration": 1, "grantedTTLSeconds": spec["ttlSeconds"], "grantTime": second(asked).to_string(),
            },
        }));
        let record = LeaseObject::read(&lease.expect("a lease")).expect("a record");
        let recorded = Recorded {
            granted: Some(second(granted)),
            renewed: Some(second(renewed)),
            published: Some(second(granted.max(renewed))),
        };
        let now = Now {
            mono: Duration::from_secs(mono),
            lease: LeaseTime::from_duration(Duration::from_secs(heard)),
            wall: second(100),
            server: Some(second(100)),
            since_last_response: Duration::ZERO,
            disconnected: false,
            paused_unwritable: Duration::ZERO,
            doubted: Duration::ZERO,
        };
        let Recovered { remaining, end_by, .. } = recover(&record, recorded, &now, &Settings::default());
        end_by.map_or(remaining, |end_by| remaining.min(end_by.since(now.lease))).as_secs()
    }

    /// For times in whole seconds, and the clocks of two API servers.
    const SLACK: u64 = 1 + 2;

    #[test]
    fn at_a_cold_start_the_ttl_counts_from_the_last_renewal_that_the_server_recorded() {
        assert_eq!(remains(10, 95, 1, 1), TTL - 5 + SLACK);
    }

    #[test]
    fn at_a_cold_start_the_ttl_counts_from_a_grant_that_came_after_everything_the_holder_wrote() {
        assert_eq!(remains(95, 10, 1, 1), TTL - 5 + SLACK);
    }

    #[test]
    fn at_a_cold_start_a_grant_that_was_accepted_late_counts_from_then() {
        let ttl = json!({"ttlSeconds": TTL});
        assert_eq!(remains_of(ttl, 70, 95, 70, 30, 30), TTL - 5 + SLACK);
        let capped = json!({"ttlSeconds": 1000, "maxLifetimeSeconds": TTL});
        assert_eq!(remains_of(capped, 70, 95, 70, 30, 30), TTL - 5 + SLACK);
    }

    #[test]
    fn nothing_ends_during_the_grace_of_a_start() {
        assert_eq!(remains(10, 10, 1, 1), 9);
        assert_eq!(remains(10, 10, 30, 30), 0);
    }

    #[test]
    fn the_grace_of_a_start_counts_from_when_the_server_is_first_heard() {
        assert_eq!(remains(10, 10, 3600, 0), 10);
    }
}
