//! What a replica remembers of one lease: the object, read once and kept small.

use lessor_api::lease::{AfterExpiry, FINALIZER, Lease, condition};
use serde_json::Value;
use uuid::Uuid;

use crate::{index::sources::Follow, lease_status::StatusSnapshot, sparse::Sparse};

pub use crate::metadata::{NamespacedName, ResourceVersion, Unreadable, uid_of, version_of};

/// One lease, as some version of its object shows it.
#[derive(Clone, Debug, Hash)]
pub struct LeaseObject {
    /// Its namespace and name.
    pub name: NamespacedName,
    /// Its uid: the identity of the lease.
    pub uid: Uuid,
    /// The version of the object that this record shows.
    pub version: ResourceVersion,
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether the finalizer of the operator is in place.
    pub has_finalizer: bool,
    /// `spec.ttlSeconds`, as asked for.
    pub ttl_seconds: i64,
    /// `spec.renewTime`, to see when it changes.
    pub renew_time: Option<Box<str>>,
    /// `spec.suspend`.
    pub suspend: bool,
    /// Whether the object stays after an expiry (`spec.afterExpiry: Retain`).
    pub retain: bool,
    /// The status, as published.
    pub status: StatusSnapshot,
    more: Sparse<More>,
}

/// What few leases have.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct More {
    max_lifetime_seconds: Option<i64>,
    warn_before_seconds: Option<i64>,
    follow: Option<Follow>,
    other_finalizers: Vec<String>,
    other_conditions: Vec<Value>,
}

/// The types of the conditions that the primary writes.
const OWN_CONDITIONS: [&str; 4] =
    [condition::ACTIVE, condition::EXPIRING, condition::FOLLOWING, condition::RELEASED];

impl LeaseObject {
    /// Reads a lease.
    ///
    /// # Errors
    /// [`Unreadable`] when the metadata lacks what every stored object has.
    pub fn read(lease: &Lease) -> Result<Self, Unreadable> {
        let meta = &lease.metadata;
        let name = NamespacedName::new(
            meta.namespace.as_deref().ok_or(Unreadable::Metadata("namespace"))?,
            meta.name.as_deref().ok_or(Unreadable::Metadata("name"))?,
        );
        let renew_from = lease.spec.renew_from.as_ref();
        let finalizers = || meta.finalizers.iter().flatten();
        let conditions = lease.status.iter().flat_map(|status| &status.conditions);
        let other_conditions =
            conditions.filter(|condition| !OWN_CONDITIONS.contains(&condition.type_.as_str()));
        Ok(Self {
            more: Sparse::new(More {
                max_lifetime_seconds: lease.spec.max_lifetime_seconds,
                warn_before_seconds: lease.spec.warn_before_seconds,
                follow: renew_from.and_then(|from| Follow::read(&name.namespace, from)),
                other_finalizers: finalizers().filter(|finalizer| *finalizer != FINALIZER).cloned().collect(),
                other_conditions: other_conditions.filter_map(|it| serde_json::to_value(it).ok()).collect(),
            }),
            name,
            uid: uid_of(meta.uid.as_deref())?,
            version: version_of(meta.resource_version.as_deref())?,
            generation: meta.generation.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            has_finalizer: finalizers().any(|name| name == FINALIZER),
            ttl_seconds: lease.spec.ttl_seconds,
            renew_time: lease.spec.renew_time.as_deref().map(Into::into),
            suspend: lease.spec.suspend,
            retain: lease.spec.after_expiry == AfterExpiry::Retain,
            status: lease.own_status().map(StatusSnapshot::read).unwrap_or_default(),
        })
    }

    /// `spec.maxLifetimeSeconds`.
    pub fn max_lifetime_seconds(&self) -> Option<i64> {
        self.more.get()?.max_lifetime_seconds
    }

    /// `status.remainingSeconds`, if the lease is suspended and its status was written for this spec.
    pub fn published_remaining(&self) -> Option<i64> {
        let is_current = self.suspend && self.status.spec_generation == Some(self.generation);
        self.status.remaining_seconds().filter(|_| is_current)
    }

    /// `spec.warnBeforeSeconds`.
    pub fn warn_before_seconds(&self) -> Option<i64> {
        self.more.get()?.warn_before_seconds
    }

    /// What it follows (`spec.renewFrom`).
    pub fn follow(&self) -> Option<&Follow> {
        self.more.get()?.follow.as_ref()
    }

    /// All finalizers, with or without that of the operator: a merge patch replaces the whole list.
    pub fn finalizers_with(&self, ours: bool) -> Vec<String> {
        let others = self.more.get().into_iter().flat_map(|more| more.other_finalizers.iter().cloned());
        others.chain(ours.then(|| FINALIZER.to_owned())).collect()
    }

    /// The conditions that other controllers wrote. A write of the status replaces the list of conditions as a whole, so it
    /// has to contain them. They are no part of [`StatusSnapshot`]: a change of them isn't a write of the primary.
    pub fn other_conditions(&self) -> &[Value] {
        self.more.get().map_or(&[], |more| &more.other_conditions)
    }

    /// Whether `newer` renews the lease that this record shows: a changed `renewTime` or `ttlSeconds`, whatever they
    /// say.
    pub fn is_renewed_by(&self, newer: &Self) -> bool {
        self.renew_time != newer.renew_time || self.ttl_seconds != newer.ttl_seconds
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lease_status::State;

    fn lease(value: serde_json::Value) -> Lease {
        serde_json::from_value(value).expect("a lease")
    }

    fn sample() -> serde_json::Value {
        json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {
                "namespace": "shop", "name": "cart", "uid": "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10",
                "resourceVersion": "42", "generation": 3, "finalizers": ["example.com/other"],
            },
            "spec": {"ttlSeconds": 30, "renewTime": "2026-01-31T12:00:00Z"},
        })
    }

    #[test]
    fn a_changed_renew_time_or_ttl_renews_and_nothing_else_does() {
        let read = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = sample();
            change(&mut value);
            LeaseObject::read(&lease(value)).expect("readable")
        };
        let before = read(&|_| {});
        assert!(before.is_renewed_by(&read(&|v| v["spec"]["renewTime"] = json!("2026-01-31T12:00:01Z"))));
        assert!(
            before.is_renewed_by(&read(&|v| v["spec"]["renewTime"] = json!("2026-01-31T13:00:00+01:00")))
        );
        assert!(before.is_renewed_by(&read(&|v| v["spec"]["ttlSeconds"] = json!(31))));
        assert!(!before.is_renewed_by(&read(&|v| v["spec"]["holder"] = json!("another"))));
        assert!(!before.is_renewed_by(&read(&|v| v["metadata"]["generation"] = json!(9))));
    }

    #[test]
    fn the_list_of_finalizers_keeps_those_of_others() {
        let record = LeaseObject::read(&lease(sample())).expect("readable");
        assert_eq!(record.finalizers_with(true), ["example.com/other", FINALIZER]);
        assert_eq!(record.finalizers_with(false), ["example.com/other"]);
    }

    #[test]
    fn a_write_of_the_status_keeps_the_conditions_of_other_controllers() {
        let noon = "2026-01-31T12:00:00Z";
        let condition = |type_: &str, generation: Option<i64>| {
            let mut condition = json!({
                "type": type_, "status": "True", "reason": "Some", "message": "", "lastTransitionTime": noon,
            });
            if let Some(generation) = generation {
                condition["observedGeneration"] = json!(generation);
            }
            condition
        };
        let mut value = sample();
        value["status"] =
            json!({"conditions": [condition("Audited", Some(2)), condition("Active", None)], "term": 1});
        let object = LeaseObject::read(&lease(value.clone())).expect("readable");
        let mut status = object.status.clone();
        status.set_state(State::Granted, 0);
        let patch = status.to_patch(object.uid, "me", 1, object.other_conditions());
        let types: Vec<&Value> = patch["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|condition| &condition["type"])
            .collect();
        assert_eq!(types, ["Active", "Audited"]);
        assert_eq!(patch["conditions"][1], condition("Audited", Some(2)), "unchanged");
        value["status"]["conditions"] = json!([condition("Active", None)]);
        let without = LeaseObject::read(&lease(value)).expect("readable");
        assert_eq!(object.status, without.status, "they don't count as a write of the primary");
    }

    #[test]
    fn a_status_that_was_written_for_another_lease_is_ignored() {
        let mut value = sample();
        value["status"] = json!({"term": 9, "endTime": "2026-01-31T12:00:00.000000Z"});
        let read = |value: &serde_json::Value| LeaseObject::read(&lease(value.clone())).expect("readable");
        assert!(read(&value).status.has_ended());
        value["status"]["leaseUID"] = value["metadata"]["uid"].clone();
        assert!(read(&value).status.has_ended());
        value["status"]["leaseUID"] = json!("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f11");
        assert_eq!(read(&value).status, StatusSnapshot::default());
    }

    #[test]
    fn an_object_without_identity_is_refused() {
        let mut value = sample();
        value["metadata"]["uid"] = json!("not a uid");
        assert_eq!(LeaseObject::read(&lease(value)).err(), Some(Unreadable::Metadata("uid")));
    }
}
