//! The `Lease`: a promise of time that its holder renews.

#![allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#![cfg_attr(
    feature = "schema",
    expect(unreachable_pub, reason = "KubeSchema repeats the structs inside its functions, `pub` and all")
)]

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use kube_derive::KubeSchema;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::rules::{
    END_TIME_MESSAGE, END_TIME_RULE, FROZEN_RULE, ONE_SOURCE_MESSAGE, ONE_SOURCE_RULE, RENEW_TIME_MESSAGE,
    RENEW_TIME_RULE, SOURCE_NAME_MESSAGE, SOURCE_NAME_RULE, TERM_RULE, UID_MESSAGE, UID_RULE,
};
#[cfg(feature = "schema")]
use super::time::{RENEW_TIME_MAX_LENGTH, RENEW_TIME_PATTERN};

/// The finalizer that keeps a lease in place until everything attached to it is gone.
pub const FINALIZER: &str = "lessor.dev/revoke";

/// The longest time that any field of a lease may ask for, in seconds: 285 years.
///
/// Below it, a deadline fits into the 64 bits of nanoseconds that monotonic clocks count in.
pub const MAX_SECONDS: i64 = 9_000_000_000;

/// What the API server answers to a renewal that comes too late.
pub const ENDED_MESSAGE: &str = "lease has ended: grant a new one";

/// The longest `spec.holder`, in characters.
pub const MAX_HOLDER_LENGTH: u32 = 253;

/// What the API server answers to a write of status by a primary that was deposed.
pub const TERM_MESSAGE: &str = "status.term never decreases: another primary has taken over";

/// Types of the conditions of a lease.
pub mod condition {
    /// True from the grant to the end; the reason is one of [`reason`](super::reason).
    pub const ACTIVE: &str = "Active";
    /// True while no more than `spec.warnBeforeSeconds` remain.
    pub const EXPIRING: &str = "Expiring";
    /// True once all that was attached is gone.
    pub const RELEASED: &str = "Released";
    /// True while what the lease follows keeps it alive; the reason is one of [`following`](super::following).
    pub const FOLLOWING: &str = "Following";
}

/// Reasons of the condition [`Following`](condition::FOLLOWING).
pub mod following {
    /// True: the source lives, and keeps the lease alive.
    pub const SOURCE_ALIVE: &str = "SourceAlive";
    /// The source isn't there: not yet, or not any more. The TTL runs.
    pub const SOURCE_MISSING: &str = "SourceMissing";
    /// The Pod has finished. The TTL runs, or the lease ends at once.
    pub const SOURCE_FINISHED: &str = "SourceFinished";
    /// Another Pod has the name. The TTL runs, or the lease ends at once.
    pub const SOURCE_REPLACED: &str = "SourceReplaced";
    /// The lease that is followed has ended. The TTL runs.
    pub const SOURCE_ENDED: &str = "SourceEnded";
    /// The lease follows itself, by way of others perhaps: it lives by its own renewals.
    pub const CYCLE: &str = "Cycle";
    /// Too many leases follow one another up to this one: it lives by its own renewals.
    pub const CHAIN_TOO_LONG: &str = "ChainTooLong";
    /// The operator isn't told to watch this kind of source. Time stands still.
    pub const NOT_ENABLED: &str = "NotEnabled";
    /// The operator lacks the right to see the source. Time stands still.
    pub const UNWATCHED: &str = "Unwatched";
}

/// Reasons of the condition [`Active`](condition::ACTIVE): the state of a lease, in one word.
pub mod reason {
    /// The lease runs.
    pub const GRANTED: &str = "Granted";
    /// The lease is active, and its time stands still.
    pub const SUSPENDED: &str = "Suspended";
    /// The lease has ended by time.
    pub const EXPIRED: &str = "Expired";
    /// The lease has ended before its time: somebody deleted it.
    pub const REVOKED: &str = "Revoked";
}

/// What the holder of a lease asks for.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(crates(kube_core = "::kube_core"))]
#[cfg_attr(feature = "schema", kube(validation = Rule::new(TERM_RULE).message(TERM_MESSAGE).reason(Reason::FieldValueForbidden).field_path(".status")))]
#[cfg_attr(feature = "schema", kube(validation = Rule::new(END_TIME_RULE).message(END_TIME_MESSAGE).reason(Reason::FieldValueForbidden).field_path(".status")))]
#[cfg_attr(feature = "schema", kube(validation = Rule::new(FROZEN_RULE).message(ENDED_MESSAGE).reason(Reason::FieldValueForbidden).field_path(".spec")))]
#[cfg_attr(feature = "schema", kube(validation = Rule::new(RENEW_TIME_RULE).message(RENEW_TIME_MESSAGE).reason(Reason::FieldValueForbidden).field_path(".spec")))]
#[kube(
    group = "lessor.dev",
    version = "v1alpha1",
    kind = "Lease",
    plural = "leases",
    shortname = "tl",
    category = "lessor",
    namespaced,
    status = "LeaseStatus",
    derive = "PartialEq",
    doc = "A promise of time: granted for a TTL, renewed by its holder, and over when it isn't. ConfigMaps, and \
           single keys of annotated objects, attach to a lease and are deleted when it ends.",
    printcolumn(
        name = "TTL",
        type_ = "integer",
        json_path = ".spec.ttlSeconds",
        description = "Seconds asked for"
    ),
    printcolumn(
        name = "HOLDER",
        type_ = "string",
        json_path = ".spec.holder",
        description = "Who keeps it alive"
    ),
    printcolumn(
        name = "STATE",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Active")].reason"#,
        description = "Granted, Suspended, Expired or Revoked"
    ),
    printcolumn(
        name = "RENEWED",
        type_ = "date",
        json_path = ".spec.renewTime",
        description = "Time since the holder's last renewal, by the holder's clock"
    ),
    printcolumn(
        name = "ATTACHED",
        type_ = "string",
        json_path = ".status.attached",
        description = "Objects, and keys of objects that stay, which go when the lease ends"
    ),
    printcolumn(
        name = "FOLLOWS",
        type_ = "string",
        json_path = ".status.follows.source",
        description = "What keeps it alive beside its holder"
    ),
    printcolumn(
        name = "EXPIRES",
        type_ = "string",
        json_path = ".status.expiryTime",
        description = "Not before this time",
        priority = "1"
    ),
    printcolumn(
        name = "PRIMARY",
        type_ = "string",
        json_path = ".status.primary",
        description = "Who wrote the status",
        priority = "1"
    ),
    printcolumn(
        name = "TERM",
        type_ = "integer",
        json_path = ".status.term",
        description = "The term under which the status was written",
        priority = "1"
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct LeaseSpec {
    /// How long the lease lives without a renewal, in seconds.
    ///
    /// What is granted is at least the operator's minimum (5 seconds unless set otherwise) and at most its maximum: see
    /// `status.grantedTTLSeconds`. A changed `ttlSeconds` renews the lease, like a changed `renewTime`.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_SECONDS)))]
    pub ttl_seconds: i64,

    /// Renews the lease whenever its holder changes it.
    ///
    /// RFC 3339 with up to nine decimals, for example 2026-01-31T12:00:00.123456Z. What it says is for people, so no
    /// clock of a client matters, but an unchanged value renews nothing: make each one new. Once set it can't be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = RENEW_TIME_MAX_LENGTH)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(format!("self.matches(r'{RENEW_TIME_PATTERN}')"))
        .message("must be a time like 2026-01-31T12:00:00.123456Z")))]
    pub renew_time: Option<String>,

    /// Who keeps the lease alive. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_HOLDER_LENGTH)))]
    pub holder: Option<String>,

    /// The lease ends at the latest this many seconds after its grant, however often it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_SECONDS)))]
    pub max_lifetime_seconds: Option<i64>,

    /// While true, time stands still: what remained (`status.remainingSeconds`) remains.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    pub suspend: bool,

    /// When no more than this many seconds remain, the condition `Expiring` becomes True and an Event says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_SECONDS)))]
    pub warn_before_seconds: Option<i64>,

    /// What becomes of the lease itself once it has expired and everything attached to it is gone: it is deleted, unless
    /// `Retain` keeps it for people to look at.
    #[serde(default, skip_serializing_if = "AfterExpiry::is_delete")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "Delete")))]
    pub after_expiry: AfterExpiry,

    /// What keeps the lease alive beside its holder: a heartbeat, each beat of which renews it, or a Pod. It costs no write
    /// at all. Changing it renews nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_from: Option<RenewFrom>,
}

/// What keeps a lease alive: exactly one of these.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", x_kube(validation = Rule::new(ONE_SOURCE_RULE).message(ONE_SOURCE_MESSAGE)))]
pub struct RenewFrom {
    /// A Lease of coordination.k8s.io in the same namespace, as controllers elect their leaders by: each change of its
    /// `renewTime` is a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordination_lease: Option<SourceName>,

    /// A node: each of its heartbeats is a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<SourceName>,

    /// A Pod in the same namespace: the lease lives as long as it does, and no TTL runs meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSource>,

    /// Another lease of lessor.dev in the same namespace: each of its renewals is one of this lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<SourceName>,
}

/// What is followed, by its name.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct SourceName {
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_SOURCE_NAME_LENGTH)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(SOURCE_NAME_RULE).message(SOURCE_NAME_MESSAGE)))]
    pub name: String,
}

/// The longest name of a source, in characters.
#[cfg(feature = "schema")]
const MAX_SOURCE_NAME_LENGTH: u32 = 253;

/// A Pod that is followed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodSource {
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_SOURCE_NAME_LENGTH)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(SOURCE_NAME_RULE).message(SOURCE_NAME_MESSAGE)))]
    pub name: String,

    /// Its uid. Without it, that of the Pod which has the name when the lease is granted: see `status.follows.uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 36)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(UID_RULE).message(UID_MESSAGE)))]
    pub uid: Option<String>,

    /// What becomes of the lease once the Pod is gone, has finished, or another Pod has its name.
    #[serde(default, skip_serializing_if = "OnLoss::is_run_out")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "RunOut")))]
    pub on_loss: OnLoss,
}

/// What becomes of a lease whose Pod is lost.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum OnLoss {
    /// Its TTL runs from then on, unless it is renewed.
    #[default]
    RunOut,
    /// It ends at once.
    End,
}

impl OnLoss {
    fn is_run_out(&self) -> bool {
        *self == Self::RunOut
    }
}

/// What becomes of an expired lease once everything attached to it is gone.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum AfterExpiry {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays, for people to look at, until somebody deletes it.
    Retain,
}

impl AfterExpiry {
    fn is_delete(&self) -> bool {
        *self == Self::Delete
    }
}

/// What the primary lessor says of a lease.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct LeaseStatus {
    /// `Active` (reasons `Granted`, `Suspended`, `Expired`, `Revoked`), `Expiring`, `Following` and `Released`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", x_kube(merge_strategy = ListMerge::Map(vec!["type".into()])))]
    pub conditions: Vec<Condition>,

    /// The generation of the spec when this status was written. A renewal changes the spec, and its status isn't written for
    /// each renewal, so that this is older than `metadata.generation` most of the time.
    // It isn't called `observedGeneration`: `kubectl wait` and kstatus take an object whose `status.observedGeneration` is older
    // than `metadata.generation` for one whose status is out of date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_generation: Option<i64>,

    /// The TTL that was granted, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "grantedTTLSeconds")]
    pub granted_ttl_seconds: Option<i64>,

    /// When the lease was granted, by the API server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_time: Option<MicroTime>,

    /// The lease ends by time not before this. Renewals refresh it lazily, so the real end may be later. Absent while
    /// the lease is suspended, and while what it follows keeps it alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry_time: Option<MicroTime>,

    /// When the lease ended. Once set, the lease is over: no renewal is accepted any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<MicroTime>,

    /// The seconds that remain, rounded up, while the lease is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<i64>,

    /// The replica of the operator that wrote this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,

    /// The term of the primary that wrote this status. It never decreases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<i64>,

    /// Greater than that of every earlier lease of this name. A lease is no mutex by itself: a system that it guards
    /// must refuse a smaller token than it has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<i64>,

    /// How much goes when the lease ends. Refreshed lazily.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,

    /// What keeps the lease alive beside its holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
}

/// What a lease follows.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Follows {
    /// The source, like node/worker-1 or pod/web-0.
    pub source: String,
    /// The uid of the Pod that is followed: another one of its name is another Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// How much is attached to a lease.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Attached {
    /// Whole objects.
    pub objects: i64,
    /// Keys of objects that stay.
    pub keys: i64,
}

/// `1 object and 2 keys`.
impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = |count| if count == 1 { "" } else { "s" };
        let Self { objects, keys } = *self;
        write!(f, "{objects} object{} and {keys} key{}", ending(objects), ending(keys))
    }
}

impl Lease {
    /// Whether the end of this lease has been committed.
    pub fn is_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.end_time.is_some())
    }

    /// Whether this lease was ever granted.
    pub fn is_granted(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.spec_generation.is_some())
    }

    /// Whether the finalizer that makes its end complete is in place.
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_says_only_what_was_said_to_it() {
        let lease = Lease::new("session-42", LeaseSpec { ttl_seconds: 10, ..LeaseSpec::default() });
        assert_eq!(serde_json::to_value(&lease).unwrap()["spec"], json!({"ttlSeconds": 10}));
        assert_eq!(serde_json::to_value(LeaseStatus::default()).unwrap(), json!({}));
    }

    #[test]
    fn fields_are_called_as_kubernetes_would_call_them() {
        let status = json!({
            "conditions": [],
            "specGeneration": 1,
            "grantedTTLSeconds": 10,
            "grantTime": "2026-01-31T12:00:00.000000Z",
            "expiryTime": "2026-01-31T12:00:10.000000Z",
            "endTime": "2026-01-31T12:00:10.000000Z",
            "remainingSeconds": 5,
            "primary": "lessor-0",
            "term": 3,
            "fencingToken": 4711,
            "attached": {"objects": 1, "keys": 2},
        });
        let read: LeaseStatus = serde_json::from_value(status.clone()).unwrap();
        let mut written = serde_json::to_value(&read).unwrap();
        written["conditions"] = json!([]);
        assert_eq!(written, status);
    }

    #[test]
    fn a_lease_has_ended_once_its_end_is_committed() {
        let mut lease = Lease::new("session-42", LeaseSpec { ttl_seconds: 10, ..LeaseSpec::default() });
        assert!(!lease.is_granted() && !lease.is_ended() && !lease.has_finalizer());
        lease.metadata.finalizers = Some(vec!["example.com/other".to_owned(), FINALIZER.to_owned()]);
        lease.status = Some(LeaseStatus { spec_generation: Some(1), ..LeaseStatus::default() });
        assert!(lease.is_granted() && !lease.is_ended() && lease.has_finalizer());
        lease.status.as_mut().unwrap().end_time =
            Some(crate::time::micro("2026-01-31T12:00:00Z".parse().unwrap()));
        assert!(lease.is_ended());
    }
}
