//! The deadline of a lease after a cold start: reconstructed from the object, by a replica that has observed none of its
//! renewals.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lease_engine::LeaseTime;
use lessor_api::Recorded;

use crate::{
    api_seconds::{rounded_down, seconds},
    clocks::Now,
    lease_object::LeaseObject,
    lease_status::State,
    settings::Settings,
    unix_millis::{from_millis, millis},
};

/// Times of the API are in whole seconds, rounded down.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The time of a lease, reconstructed from its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Its TTL.
    pub ttl: Duration,
    /// What remains of it.
    pub remaining: Duration,
    /// How much of that is a grace beyond `--start-grace`, for holders that may not have been able to renew for long.
    pub long_grace: Duration,
    /// When it ends however often it is renewed; `None`: it has no cap.
    pub end_by: Option<LeaseTime>,
}

/// The TTL in its status, in seconds.
pub fn published_ttl(record: &LeaseObject) -> Option<i64> {
    record.status.grant.map(|grant| grant.ttl_seconds)
}

/// The TTL that a lease was granted: the published one, even if this replica would grant another. During a rollout replicas
/// may have different settings, and a lease must not end before the time that its holder was promised.
pub fn ttl_granted(record: &LeaseObject, settings: &Settings) -> Duration {
    let ours = settings.granted_ttl(record.ttl_seconds);
    match published_ttl(record) {
        Some(published) if published != rounded_down(ours) => seconds(published),
        _ => ours,
    }
}

/// Reconstructs the time of a lease that was granted before this replica started.
///
/// Its TTL counts from the last renewal as the API server recorded it, by the API server's clock. The resolution of those times,
/// and the skew between the clocks of API servers, make the deadline later.
pub fn recover(record: &LeaseObject, recorded: Recorded, now: &Now, settings: &Settings) -> Recovered {
    let mut ttl = ttl_granted(record, settings);
    if recorded.renewed_unseen() {
        // No primary has published a TTL since, so the one in spec counts.
        ttl = settings.granted_ttl(record.ttl_seconds);
    } else if record.status.spec_generation != Some(record.generation) {
        // `ttlSeconds` may have changed since the TTL was published.
        ttl = ttl.max(settings.granted_ttl(record.ttl_seconds));
    }
    let mut last = granted_at(record, recorded).max(recorded.renewed);
    if record.follow().is_some() {
        // Its source may have kept it alive until its status was last written. If it still does, a watch or a read will show it.
        last = last.max(recorded.published);
    }
    if recorded.incomplete {
        // It was renewed, and nothing says when.
        last = None;
    }
    let slack = RESOLUTION.saturating_add(settings.max_clock_skew);
    let mut remaining = match (last, now.server) {
        (Some(last), Some(server)) => ttl.saturating_add(slack).saturating_sub(used_up(last, server, now)),
        _ => ttl,
    };
    let was_suspended = record.status.state() == Some(State::Suspended);
    if was_suspended {
        // Its time was paused since that was published, unless a renewal came later.
        let renewed_since = recorded.renewed >= recorded.published;
        remaining = match record.status.remaining_seconds() {
            Some(remaining) if !renewed_since => seconds(remaining),
            _ => ttl,
        };
    } else if record.suspend {
        // Since when its time is paused isn't recorded.
        remaining = ttl;
    }
    // Holders may not have been able to renew before the start. A suspended lease has lost nothing.
    // In lease time: before the first response of the API server, holders may still not be able to.
    let left = |grace: Duration| grace.saturating_sub(now.lease.since(LeaseTime::ZERO));
    let grace = left(settings.start_grace);
    let long_grace = left(settings.start_grace_of(ttl));
    let shortly = if record.suspend { remaining } else { remaining.max(grace) };
    let remaining = if record.suspend { remaining } else { remaining.max(long_grace) };
    let end_by = end_by(record, recorded, now, settings).map(|end_by| end_by.max(now.lease + grace));
    Recovered { ttl, remaining, long_grace: remaining.saturating_sub(shortly), end_by }
}

/// The cap of a lease whose `maxLifetimeSeconds` has changed since `old`; `known`: its cap before. Wall clocks don't know of
/// outages, so what is known only moves.
pub fn moved_cap(
    old: &LeaseObject,
    new: &LeaseObject,
    known: Option<LeaseTime>,
    recorded: Recorded,
    now: &Now,
    settings: &Settings,
) -> Option<LeaseTime> {
    match (old.max_lifetime_seconds(), new.max_lifetime_seconds(), known) {
        (Some(before), Some(after), Some(known)) => Some(known + seconds(after) - seconds(before)),
        _ => end_by(new, recorded, now, settings),
    }
}

/// When the lease ends however often it is renewed: the latest time that the clocks allow for.
pub fn end_by(record: &LeaseObject, recorded: Recorded, now: &Now, settings: &Settings) -> Option<LeaseTime> {
    let lifetime = seconds(record.max_lifetime_seconds()?);
    let is_recorded = recorded.granted.is_some() || !recorded.incomplete;
    let lived = match (granted_at(record, recorded), now.server) {
        (Some(granted), Some(server)) if is_recorded => used_up(granted, server, now),
        _ => Duration::ZERO,
    };
    Some(
        now.lease
            + lifetime
                .saturating_add(RESOLUTION)
                .saturating_add(settings.max_clock_skew)
                .saturating_sub(lived),
    )
}

/// How much lease time has passed between two times of the API server's clock, at least. Wall clocks don't know of outages, and
/// a lease may first be observed after one that this replica has met: all of it may have been since then.
fn used_up(from: Timestamp, to: Timestamp, now: &Now) -> Duration {
    elapsed(from, to).saturating_sub(now.paused())
}

fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from).max(SignedDuration::ZERO)).unwrap_or(Duration::ZERO)
}

/// When a lease was granted. Its status has the time when the grant was sent, which may be long before it was accepted.
fn granted_at(record: &LeaseObject, recorded: Recorded) -> Option<Timestamp> {
    record.status.grant.map(|grant| from_millis(grant.time)).max(recorded.granted)
}

/// The time at which a grant was accepted, if it was sent long before: to be published in place of the time when it was sent.
/// Users read it, and so do replicas where the API server has recorded nothing.
///
/// The API server's record counts, not the time when this replica observed the grant: its watch may be late too.
pub fn granted_by(record: &LeaseObject, recorded: Recorded) -> Option<i64> {
    let (grant, accepted) = (record.status.grant?, recorded.granted?);
    (elapsed(from_millis(grant.time), accepted) > RESOLUTION + RESOLUTION).then(|| millis(accepted))
}

/// The deadline that a published `expiryTime` stands for, if this machine's clock agrees with the writer's. It decides when to
/// publish again, and never when a lease ends.
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
    /// observed at second 100, when the replica has run for `mono` seconds, `connected` of them with the API server.
    fn remains(granted: i64, renewed: i64, mono: u64, connected: u64) -> u64 {
        remains_of(json!({"ttlSeconds": TTL}), granted, granted, renewed, mono, connected)
    }

    /// The same, for a lease whose grant names the second `asked`, and was accepted at `granted`.
    fn remains_of(spec: Value, asked: i64, granted: i64, renewed: i64, mono: u64, connected: u64) -> u64 {
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
            incomplete: false,
        };
        let now = Now {
            mono: Duration::from_secs(mono),
            lease: LeaseTime::from_duration(Duration::from_secs(connected)),
            wall: second(100),
            server: Some(second(100)),
            since_last_response: Duration::ZERO,
            disconnected: false,
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
    fn no_lease_ends_during_the_grace_period_of_a_start() {
        assert_eq!(remains(10, 10, 1, 1), 9);
        assert_eq!(remains(10, 10, 30, 30), 0);
    }

    #[test]
    fn a_lease_of_a_long_ttl_has_a_grace_period_of_a_third_of_it_up_to_a_limit() {
        let of = |ttl: u64| remains_of(json!({"ttlSeconds": ttl}), -9_999, -9_999, -9_999, 1, 1);
        assert_eq!((of(15), of(120), of(9_000)), (9, 39, 599));
    }

    #[test]
    fn a_renewal_that_is_not_recorded_may_have_been_made_just_now() {
        let uid = Uuid::from_u128(7);
        let lease = serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": "cart", "uid": uid.to_string(), "resourceVersion": "1", "generation": 1,
            },
            "spec": {"ttlSeconds": TTL, "renewTime": "a", "maxLifetimeSeconds": 50},
            "status": {"specGeneration": 1, "grantedTTLSeconds": TTL, "grantTime": second(10).to_string()},
        }));
        let lease: lessor_api::Lease = lease.expect("a lease");
        let record = LeaseObject::read(&lease).expect("a record");
        let now = Now { server: Some(second(100)), ..Now::start(second(100)) };
        let recovered = recover(&record, Recorded::read(&lease), &now, &Settings::default());
        assert_eq!(recovered.remaining.as_secs(), TTL);
        assert_eq!(recovered.end_by.map(|cap| cap.since(now.lease).as_secs()), Some(50 + SLACK));
    }

    #[test]
    fn the_grace_period_of_a_start_counts_from_the_first_response() {
        assert_eq!(remains(10, 10, 50, 0), 10);
    }

    #[test]
    fn an_outage_that_this_replica_has_met_uses_up_no_time_of_a_lease_that_it_first_observes_afterwards() {
        // Renewed 30 s ago, of which 25 were an outage.
        assert_eq!(remains(10, 70, 100, 75), TTL - 5 + SLACK);
        assert_eq!(remains(10, 70, 100, 0), TTL + SLACK, "an outage that began before the renewal");
        let capped = json!({"ttlSeconds": 1000, "maxLifetimeSeconds": TTL});
        assert_eq!(remains_of(capped, 70, 70, 70, 100, 75), TTL - 5 + SLACK);
    }
}
