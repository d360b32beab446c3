//! The `Lease`: a TTL that its holder renews, with what is deleted when it ends.

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
    END_TIME_MESSAGE, END_TIME_RULE, FROZEN_RULE, LEASE_TERM_RULE, ONE_SOURCE_MESSAGE, ONE_SOURCE_RULE,
    RENEW_TIME_MESSAGE, RENEW_TIME_RULE, SOURCE_NAME_MESSAGE, SOURCE_NAME_RULE, UID_MESSAGE, UID_RULE,
};
#[cfg(feature = "schema")]
use super::time::{RENEW_TIME_MAX_LENGTH, RENEW_TIME_PATTERN};

/// The finalizer that keeps a lease until everything attached to it is removed.
pub const FINALIZER: &str = "lessor.dev/revoke";

/// The maximum of every field of a lease that is a number of seconds: 285 years.
///
/// It keeps deadlines within the 64 bits of nanoseconds of monotonic clocks.
pub const MAX_SECONDS: i64 = 9_000_000_000;

/// The API server's error for a renewal after the end.
pub const ENDED_MESSAGE: &str = "lease has ended: grant a new one";

/// The longest `spec.holder`, in characters.
pub const MAX_HOLDER_LENGTH: u32 = 253;

/// The API server's error for a status write by a former primary.
pub const TERM_MESSAGE: &str = "status.term never decreases: another primary has taken over";

/// Types of the conditions of a lease.
pub mod condition {
    /// True from the grant to the end. Its reason is one of [`reason`](super::reason).
    pub const ACTIVE: &str = "Active";
    /// True while at most `spec.warnBeforeSeconds` remain.
    pub const EXPIRING: &str = "Expiring";
    /// True once everything attached is removed.
    pub const RELEASED: &str = "Released";
    /// True while the source of `spec.renewFrom` keeps the lease alive. Its reason is one of [`following`](super::following).
    pub const FOLLOWING: &str = "Following";
}

/// Reasons of the condition [`Following`](condition::FOLLOWING).
pub mod following {
    /// True: the source is alive, and keeps the lease alive.
    pub const SOURCE_ALIVE: &str = "SourceAlive";
    /// The source doesn't exist (yet, or any more). The TTL runs.
    pub const SOURCE_MISSING: &str = "SourceMissing";
    /// The Pod has finished. The TTL runs, or the lease ends at once: see `onLoss`.
    pub const SOURCE_FINISHED: &str = "SourceFinished";
    /// The Pod still terminates, a minute after its grace period, as on a dead node. The TTL runs, or the lease ends at once:
    /// see `onLoss`.
    pub const SOURCE_TERMINATING: &str = "SourceTerminating";
    /// Another Pod has the name. The TTL runs, or the lease ends at once: see `onLoss`.
    pub const SOURCE_REPLACED: &str = "SourceReplaced";
    /// The followed lease has ended. The TTL runs.
    pub const SOURCE_ENDED: &str = "SourceEnded";
    /// The lease follows itself, directly or through others. Only its own renewals keep it alive.
    pub const CYCLE: &str = "Cycle";
    /// The chain of leases that follow one another is too long. Only its own renewals keep it alive.
    pub const CHAIN_TOO_LONG: &str = "ChainTooLong";
    /// The operator isn't configured to watch this kind of source. The lease doesn't expire.
    pub const NOT_ENABLED: &str = "NotEnabled";
    /// The operator lacks the right to watch the source. The lease doesn't expire.
    pub const UNWATCHED: &str = "Unwatched";
}

/// Reasons of the condition [`Active`](condition::ACTIVE): the state of a lease in one word.
pub mod reason {
    /// The lease is active, and its TTL runs.
    pub const GRANTED: &str = "Granted";
    /// The lease is active, and its TTL is paused.
    pub const SUSPENDED: &str = "Suspended";
    /// The lease has ended because its time was over.
    pub const EXPIRED: &str = "Expired";
    /// The lease was deleted before its time was over.
    pub const REVOKED: &str = "Revoked";
}

/// The lease that its holder requests.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(crates(kube_core = "::kube_core"))]
#[cfg_attr(feature = "schema", kube(validation = Rule::new(LEASE_TERM_RULE).message(TERM_MESSAGE).reason(Reason::FieldValueForbidden).field_path(".status")))]
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
    doc = "A lease is granted for a TTL, and ends when its holder stops renewing it. Annotations attach objects, or single \
           keys of objects, to the lease; they are deleted when it ends.",
    printcolumn(
        name = "TTL",
        type_ = "integer",
        json_path = ".spec.ttlSeconds",
        description = "Requested TTL in seconds"
    ),
    printcolumn(
        name = "HOLDER",
        type_ = "string",
        json_path = ".spec.holder",
        description = "Who renews the lease"
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
        description = "Time since spec.renewTime, by the holder's clock"
    ),
    printcolumn(
        name = "OBJECTS",
        type_ = "integer",
        json_path = ".status.attached.objects",
        description = "Whole objects that are deleted when the lease ends"
    ),
    printcolumn(
        name = "KEYS",
        type_ = "integer",
        json_path = ".status.attached.keys",
        description = "Keys that are removed from other objects when the lease ends"
    ),
    printcolumn(
        name = "FOLLOWS",
        type_ = "string",
        json_path = ".status.follows.source",
        description = "What renews the lease besides its holder",
        priority = "1"
    ),
    printcolumn(
        name = "EXPIRES",
        type_ = "string",
        json_path = ".status.expiryTime",
        description = "The lease expires not before this time",
        priority = "1"
    ),
    printcolumn(
        name = "PRIMARY",
        type_ = "string",
        json_path = ".status.primary",
        description = "The replica that wrote the status",
        priority = "1"
    ),
    printcolumn(
        name = "TERM",
        type_ = "integer",
        json_path = ".status.term",
        description = "The term of the replica that wrote the status",
        priority = "1"
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct LeaseSpec {
    /// How long the lease lives after its last renewal, in seconds.
    ///
    /// The granted TTL is at least the operator's minimum (5 seconds by default) and at most its maximum: see
    /// `status.grantedTTLSeconds`. A change of `ttlSeconds` renews the lease, like a change of `renewTime`.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_SECONDS)))]
    pub ttl_seconds: i64,

    /// Every change of this field renews the lease.
    ///
    /// RFC 3339 with up to nine decimals, for example 2026-01-31T12:00:00.123456Z. The value itself has no effect, so the
    /// clocks of clients don't matter. An unchanged value renews nothing. Once set, the field can't be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = RENEW_TIME_MAX_LENGTH)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(format!("self.matches(r'{RENEW_TIME_PATTERN}')"))
        .message("must be a time like 2026-01-31T12:00:00.123456Z")))]
    pub renew_time: Option<String>,

    /// Who renews the lease, for information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_HOLDER_LENGTH)))]
    pub holder: Option<String>,

    /// The lease ends at most this many seconds after its grant, even if it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_SECONDS)))]
    pub max_lifetime_seconds: Option<i64>,

    /// While true, the TTL is paused at `status.remainingSeconds`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    pub suspend: bool,

    /// When at most this many seconds remain, the condition `Expiring` becomes True and an Event is emitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_SECONDS)))]
    pub warn_before_seconds: Option<i64>,

    /// Whether the operator deletes the lease after it has expired and everything attached to it is removed (`Delete`), or
    /// keeps it for inspection (`Retain`).
    #[serde(default, skip_serializing_if = "AfterExpiry::is_delete")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "Delete")))]
    pub after_expiry: AfterExpiry,

    /// A source that keeps the lease alive besides its holder: a heartbeat, each beat of which renews the lease, or a Pod.
    /// It costs no writes. Changing it renews nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_from: Option<RenewFrom>,
}

/// The source that keeps a lease alive: exactly one of these.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", x_kube(validation = Rule::new(ONE_SOURCE_RULE).message(ONE_SOURCE_MESSAGE)))]
pub struct RenewFrom {
    /// A Lease of coordination.k8s.io in the same namespace, such as one for leader election. Each change of its
    /// `renewTime` renews this lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordination_lease: Option<SourceName>,

    /// A node. Each of its heartbeats renews this lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<SourceName>,

    /// A Pod in the same namespace. This lease doesn't expire as long as the Pod is alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSource>,

    /// Another Lease of lessor.dev in the same namespace. Each of its renewals renews this lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<SourceName>,
}

/// A source by its name.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct SourceName {
    /// The name of the source.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_SOURCE_NAME_LENGTH)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(SOURCE_NAME_RULE).message(SOURCE_NAME_MESSAGE)))]
    pub name: String,
}

/// The longest name of a source, in characters.
#[cfg(feature = "schema")]
const MAX_SOURCE_NAME_LENGTH: u32 = 253;

/// A Pod as a source.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodSource {
    /// The name of the Pod.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_SOURCE_NAME_LENGTH)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(SOURCE_NAME_RULE).message(SOURCE_NAME_MESSAGE)))]
    pub name: String,

    /// The uid of the Pod. The default is the uid of the Pod with this name at the grant: see `status.follows.uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 36)))]
    #[cfg_attr(feature = "schema", x_kube(validation = Rule::new(UID_RULE).message(UID_MESSAGE)))]
    pub uid: Option<String>,

    /// What happens to the lease once the Pod is deleted, has finished, or is replaced by another of its name.
    #[serde(default, skip_serializing_if = "OnLoss::is_run_out")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "RunOut")))]
    pub on_loss: OnLoss,
}

/// What happens to a lease whose Pod is lost.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum OnLoss {
    /// Its TTL runs from then on.
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

/// What happens to an expired lease once everything attached to it is removed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum AfterExpiry {
    /// It is deleted.
    #[default]
    Delete,
    /// It is kept until a user deletes it.
    Retain,
}

impl AfterExpiry {
    fn is_delete(&self) -> bool {
        *self == Self::Delete
    }
}

/// The state of a lease, written by the primary.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct LeaseStatus {
    /// `Active` (reasons `Granted`, `Suspended`, `Expired`, `Revoked`), `Expiring`, `Following` and `Released`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", x_kube(merge_strategy = ListMerge::Map(vec!["type".into()])))]
    pub conditions: Vec<Condition>,

    /// The generation of the spec at the last write of this status. Renewals change the generation, and the status isn't
    /// written at every renewal, so this is usually less than `metadata.generation`.
    // Not `observedGeneration`, because `kubectl wait` and kstatus regard a status as outdated if that is less than
    // `metadata.generation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_generation: Option<i64>,

    /// The uid of the lease that this status was written for. A status of another lease, which a backup tool has restored, is
    /// ignored and replaced: the lease is granted anew.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "leaseUID")]
    pub lease_uid: Option<String>,

    /// The granted TTL in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "grantedTTLSeconds")]
    pub granted_ttl_seconds: Option<i64>,

    /// When the lease was granted, by the API server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_time: Option<MicroTime>,

    /// The lease doesn't expire before this time. It may expire later, because this field isn't updated at every renewal.
    /// Absent while the lease is suspended, and while a source keeps it alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry_time: Option<MicroTime>,

    /// When the lease ended. Once it is set, the API server rejects renewals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<MicroTime>,

    /// The remaining seconds while the lease is suspended, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<i64>,

    /// The replica of the operator that wrote this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,

    /// The term of the primary that wrote this status. It never decreases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<i64>,

    /// Greater than the token of every earlier lease of this name. A lease alone is not a mutex: a system that it
    /// protects must reject a token smaller than one it has accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<i64>,

    /// How much is removed when the lease ends. It isn't updated at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,

    /// The source that keeps the lease alive besides its holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
}

/// The source that a lease follows.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Follows {
    /// The source, like node/worker-1 or pod/web-0.
    pub source: String,
    /// The uid of the followed Pod. A Pod with the same name and another uid is another Pod.
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
    /// Keys of other objects.
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
    /// The status, unless it was written for another lease: then a backup tool has restored it, and the operator replaces it.
    pub fn own_status(&self) -> Option<&LeaseStatus> {
        let status = self.status.as_ref()?;
        let (lease_uid, uid) = (status.lease_uid.as_ref(), self.metadata.uid.as_ref());
        lease_uid.zip(uid).is_none_or(|(lease_uid, uid)| lease_uid == uid).then_some(status)
    }

    /// Whether the lease has ended.
    pub fn is_ended(&self) -> bool {
        self.own_status().is_some_and(|status| status.end_time.is_some())
    }

    /// Whether the lease was ever granted.
    pub fn is_granted(&self) -> bool {
        self.own_status().is_some_and(|status| status.spec_generation.is_some())
    }

    /// Whether the lease has [`FINALIZER`].
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_are_not_serialized() {
        let lease = Lease::new("session-42", LeaseSpec { ttl_seconds: 10, ..LeaseSpec::default() });
        assert_eq!(serde_json::to_value(&lease).unwrap()["spec"], json!({"ttlSeconds": 10}));
        assert_eq!(serde_json::to_value(LeaseStatus::default()).unwrap(), json!({}));
    }

    #[test]
    fn status_fields_have_kubernetes_names() {
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
    fn a_status_that_was_written_for_another_lease_is_none() {
        let mut lease = Lease::new("session-42", LeaseSpec { ttl_seconds: 10, ..LeaseSpec::default() });
        lease.metadata.uid = Some("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10".to_owned());
        let mut status = LeaseStatus { spec_generation: Some(1), ..LeaseStatus::default() };
        for (lease_uid, is_own) in [
            (None, true),
            (lease.metadata.uid.clone(), true),
            (Some("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f11".to_owned()), false),
        ] {
            status.lease_uid = lease_uid;
            lease.status = Some(status.clone());
            assert_eq!((lease.own_status().is_some(), lease.is_granted()), (is_own, is_own));
        }
    }

    #[test]
    fn a_lease_has_ended_once_it_has_an_end_time() {
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
