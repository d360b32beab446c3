//! Times that the API server records in `metadata.managedFields`.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry, jiff::Timestamp};

use super::Lease;

/// The field manager of the status write that grants a lease, and of no other write.
///
/// So the API server keeps the time of the grant, whatever is written to the lease later.
pub const GRANT_MANAGER: &str = "lessor-grant";

/// Times of the grant, the last renewal and the last status write, by the API server's clock, in whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The grant.
    pub granted: Option<Timestamp>,
    /// The last write by an owner of `spec.renewTime` or `spec.ttlSeconds`: at or after the last renewal.
    pub renewed: Option<Timestamp>,
    /// The last status write.
    pub published: Option<Timestamp>,
    /// `spec.renewTime` is set, and nothing records by which write: the records were reset.
    pub incomplete: bool,
}

impl Recorded {
    /// Reads `metadata.managedFields`, which has the time of each field manager's last change.
    pub fn read(lease: &Lease) -> Self {
        let entries = || lease.metadata.managed_fields.iter().flatten();
        let of_status = |entry: &ManagedFieldsEntry| entry.subresource.as_deref() == Some("status");
        Self {
            granted: latest(entries(), |entry| {
                of_status(entry) && entry.manager.as_deref() == Some(GRANT_MANAGER)
            }),
            renewed: Self::of_renewal(entries()),
            published: latest(entries(), of_status),
            incomplete: lease.spec.renew_time.is_some() && !entries().any(|entry| owns(entry, "f:renewTime")),
        }
    }

    /// The last write by an owner of `spec.renewTime` or `spec.ttlSeconds`, in a Lease of lessor.dev or coordination.k8s.io.
    pub fn of_renewal<'a>(entries: impl Iterator<Item = &'a ManagedFieldsEntry>) -> Option<Timestamp> {
        latest(entries, |entry| owns(entry, "f:renewTime") || owns(entry, "f:ttlSeconds"))
    }

    /// Whether the last renewal is certainly later than the last status write, so that no primary has observed it.
    pub fn renewed_unseen(&self) -> bool {
        self.published.is_some() && self.renewed > self.published
    }
}

/// Whether a field manager owns this field of the spec.
fn owns(entry: &ManagedFieldsEntry, field: &str) -> bool {
    let spec = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:spec"));
    spec.is_some_and(|spec| spec.get(field).is_some())
}

/// The time of the latest write that matches.
fn latest<'a>(
    entries: impl Iterator<Item = &'a ManagedFieldsEntry>,
    matching: impl Fn(&ManagedFieldsEntry) -> bool,
) -> Option<Timestamp> {
    entries.filter(|entry| matching(entry)).filter_map(|entry| Some(entry.time.as_ref()?.0)).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(value: serde_json::Value) -> Lease {
        serde_json::from_value(value).expect("a lease")
    }

    #[test]
    fn the_last_renewal_is_the_last_write_by_an_owner_of_renew_time() {
        let mut value = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"namespace": "shop", "name": "cart"},
            "spec": {"ttlSeconds": 30, "renewTime": "2026-01-31T12:00:00Z"},
        });
        // As after a reset of the records.
        let nothing = Recorded { incomplete: true, ..Recorded::default() };
        assert_eq!(Recorded::read(&lease(value.clone())), nothing);
        let entry = |manager: &str, time: &str, subresource: Option<&str>, fields: serde_json::Value| {
            let mut entry =
                json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields});
            if let Some(subresource) = subresource {
                entry["subresource"] = json!(subresource);
            }
            entry
        };
        value["metadata"]["managedFields"] = json!([
            entry("kubectl", "2026-01-31T12:00:00Z", None, json!({"f:spec": {"f:ttlSeconds": {}}})),
            entry("holder", "2026-01-31T12:00:20Z", None, json!({"f:spec": {"f:renewTime": {}}})),
            entry("labels", "2026-01-31T12:00:40Z", None, json!({"f:metadata": {"f:labels": {}}})),
            entry("lessor", "2026-01-31T12:00:50Z", Some("status"), json!({"f:status": {}})),
        ]);
        let recorded = Recorded::read(&lease(value.clone()));
        assert_eq!(recorded.renewed, Some("2026-01-31T12:00:20Z".parse().expect("a time")));
        assert_eq!(recorded.published, Some("2026-01-31T12:00:50Z".parse().expect("a time")));
        assert!(!recorded.incomplete);
        assert!(!recorded.renewed_unseen() && !Recorded::default().renewed_unseen());
        value["metadata"]["managedFields"][1]["time"] = json!("2026-01-31T12:00:51Z");
        assert!(Recorded::read(&lease(value)).renewed_unseen());
    }

    #[test]
    fn the_grant_has_a_field_manager_of_its_own() {
        let entry = |manager: &str, time: &str, subresource: Option<&str>| {
            json!({"manager": manager, "operation": "Update", "time": time, "subresource": subresource,
                "fieldsV1": {"f:status": {"f:fencingToken": {}}}})
        };
        let value = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"namespace": "shop", "name": "cart", "managedFields": [
                entry("lessor-grant", "2026-01-31T12:00:05Z", Some("status")),
                entry("lessor", "2026-01-31T12:00:50Z", Some("status")),
                // A holder that uses the same name writes no status.
                entry("lessor-grant", "2026-01-31T12:00:55Z", None),
            ]},
            "spec": {"ttlSeconds": 30},
        });
        assert_eq!(
            Recorded::read(&lease(value)).granted,
            Some("2026-01-31T12:00:05Z".parse().expect("a time"))
        );
    }
}
