//! What the API server rejects for every client, and what kubectl shows: each test prints the response.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says that something can't fail by failing"
)]

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use lessor_api::{
    Attachments, KeyForm, Lease, LeaseSpec, LeaseStatus, Lessor, LessorStatus, crd,
    lease::{ENDED_MESSAGE, MAX_SECONDS},
    lessor::LessorSpec,
    time::{from_text, micro},
};
use lessor_cluster::{Cluster, Tool};
use serde_json::{Value, json};
use tokio::{process::Command, sync::OnceCell};

const NOON: &str = "2026-01-31T12:00:00.000000Z";

/// A client of a cluster where the definitions are installed.
async fn client() -> Client {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let client = Cluster::shared().await.unwrap().client().unwrap();
    INSTALLED
        .get_or_init(|| async {
            let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
            for crd in crd::all() {
                let name = crd.name_any();
                crds.patch(&name, &PatchParams::apply("crd-rules").force(), &Patch::Apply(&crd))
                    .await
                    .unwrap();
                await_condition(crds.clone(), &name, is_crd_established()).await.unwrap();
            }
        })
        .await;
    client
}

/// The leases of a new namespace.
async fn leases() -> Api<Lease> {
    let client = client().await;
    let metadata = ObjectMeta { generate_name: Some("crd-rules-".to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    let namespace = Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    Api::namespaced(client, &namespace.name_any())
}

fn lease() -> Lease {
    let spec = LeaseSpec { ttl_seconds: 10, renew_time: Some(NOON.to_owned()), ..LeaseSpec::default() };
    Lease::new("session-42", spec)
}

fn granted(term: i64) -> LeaseStatus {
    LeaseStatus { spec_generation: Some(1), term: Some(term), ..LeaseStatus::default() }
}

fn ended(term: i64) -> LeaseStatus {
    LeaseStatus { end_time: Some(micro(from_text(NOON).unwrap())), ..granted(term) }
}

/// Creates a lease with a status.
async fn create(leases: &Api<Lease>, status: LeaseStatus) -> Lease {
    let created = leases.create(&PostParams::default(), &lease()).await.unwrap();
    replace_status(leases, &created, Some(status)).await.unwrap()
}

async fn replace_status(
    leases: &Api<Lease>,
    lease: &Lease,
    status: Option<LeaseStatus>,
) -> kube::Result<Lease> {
    let lease = Lease { status, ..lease.clone() };
    leases.replace_status("session-42", &PostParams::default(), &lease).await
}

async fn merge(leases: &Api<Lease>, patch: Value) -> kube::Result<Lease> {
    leases.patch("session-42", &PatchParams::default(), &Patch::Merge(patch)).await
}

async fn merge_status(leases: &Api<Lease>, patch: Value) -> kube::Result<Lease> {
    leases.patch_status("session-42", &PatchParams::default(), &Patch::Merge(patch)).await
}

/// The API server's error, which must be that the object is invalid.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 422 => {
            println!("{}", status.message);
            status.message.clone()
        }
        other => panic!("not refused as invalid: {other:?}"),
    }
}

#[tokio::test]
async fn a_lower_term_is_refused() {
    let leases = leases().await;
    let lease = create(&leases, granted(2)).await;
    let answer = refused(replace_status(&leases, &lease, Some(granted(1))).await);
    assert!(answer.contains("status.term never decreases: another primary has taken over"), "{answer}");
    refused(merge_status(&leases, json!({"status": {"term": 1}})).await);
    refused(merge_status(&leases, json!({"status": {"term": null}})).await);

    let lease = replace_status(&leases, &lease, Some(granted(2))).await.unwrap();
    replace_status(&leases, &lease, Some(granted(3))).await.unwrap();
}

#[tokio::test]
async fn an_end_once_committed_never_changes() {
    let leases = leases().await;
    create(&leases, ended(1)).await;
    for time in ["2026-01-31T12:00:01Z", "2026-01-31T11:59:59Z"] {
        let answer = refused(merge_status(&leases, json!({"status": {"endTime": time}})).await);
        assert!(answer.contains("status.endTime, once set, never changes: the lease has ended"), "{answer}");
    }
    let answer = refused(merge_status(&leases, json!({"status": {"endTime": null}})).await);
    assert!(answer.contains("status.endTime, once set, never changes"), "{answer}");
    merge_status(&leases, json!({"status": {"attached": {"objects": 0}}})).await.unwrap();
}

/// As the operator replaces a status that a backup tool has restored.
#[tokio::test]
async fn the_status_of_another_lease_is_replaced_and_the_own_one_is_final_again() {
    let leases = leases().await;
    let of = |uid: &str, status| LeaseStatus { lease_uid: Some(uid.to_owned()), ..status };
    let lease = create(&leases, of("other", ended(9))).await;
    let lease = replace_status(&leases, &lease, Some(of("own", ended(2)))).await.unwrap();
    let answer = refused(replace_status(&leases, &lease, Some(of("own", granted(1)))).await);
    assert!(answer.contains("status.term never decreases"), "{answer}");
    assert!(answer.contains("status.endTime, once set, never changes"), "{answer}");
    // Nor by leaving the uid out.
    refused(replace_status(&leases, &lease, Some(granted(1))).await);
    refused(replace_status(&leases, &lease, None).await);
}

#[tokio::test]
async fn a_status_dropped_as_a_whole_is_refused() {
    let leases = leases().await;
    let lease = create(&leases, ended(1)).await;
    let answers = [
        refused(replace_status(&leases, &lease, None).await),
        refused(merge_status(&leases, json!({"status": null})).await),
        refused(replace_status(&leases, &lease, Some(LeaseStatus::default())).await),
    ];
    for answer in answers {
        assert!(answer.contains("status.term never decreases"), "{answer}");
        assert!(answer.contains("status.endTime, once set, never changes"), "{answer}");
    }
    let patch = serde_json::from_value(json!([{"op": "remove", "path": "/status"}])).unwrap();
    let patch = Patch::Json::<()>(patch);
    refused(leases.patch_status("session-42", &PatchParams::default(), &patch).await);
}

#[tokio::test]
async fn a_renewal_after_the_end_is_refused() {
    let leases = leases().await;
    create(&leases, ended(1)).await;
    let renewal = json!({"spec": {"renewTime": "2026-01-31T12:00:05.000000Z"}});
    let answer = refused(merge(&leases, renewal).await);
    assert!(answer.contains(ENDED_MESSAGE), "{answer}");
}

#[tokio::test]
async fn the_same_instant_in_another_spelling_is_a_renewal_and_refused_after_the_end() {
    let leases = leases().await;
    create(&leases, ended(1)).await;
    for text in
        ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000+00:00", "2026-01-31T13:00:00.000000+01:00"]
    {
        assert_eq!(from_text(text), from_text(NOON));
        let answer = refused(merge(&leases, json!({"spec": {"renewTime": text}})).await);
        assert!(answer.contains(ENDED_MESSAGE), "{answer}");
    }
}

#[tokio::test]
async fn no_field_of_the_spec_changes_after_the_end() {
    let leases = leases().await;
    let ended = create(&leases, ended(1)).await;
    for change in [
        json!({"ttlSeconds": 11}),
        json!({"renewTime": null}),
        json!({"holder": "somebody else"}),
        json!({"maxLifetimeSeconds": 60}),
        json!({"warnBeforeSeconds": 5}),
        json!({"suspend": true}),
        json!({"afterExpiry": "Retain"}),
    ] {
        let answer = refused(merge(&leases, json!({"spec": change})).await);
        assert!(answer.contains(ENDED_MESSAGE), "{change}: {answer}");
    }
    let mut replaced = ended;
    replaced.spec.ttl_seconds = 11;
    refused(leases.replace("session-42", &PostParams::default(), &replaced).await);
}

#[tokio::test]
async fn an_ended_lease_can_still_be_labelled_and_lose_its_finalizers() {
    let leases = leases().await;
    let created = create(&leases, granted(1)).await;
    merge(&leases, json!({"metadata": {"finalizers": [lessor_api::lease::FINALIZER]}})).await.unwrap();
    merge_status(&leases, json!({"status": ended(1)})).await.unwrap();
    merge(&leases, json!({"metadata": {"labels": {"seen": "yes"}}})).await.unwrap();
    let kept = merge(&leases, json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert_eq!(kept.uid(), created.uid());
}

#[tokio::test]
async fn the_end_itself_does_not_freeze_a_lease_that_runs() {
    let leases = leases().await;
    create(&leases, granted(1)).await;
    merge(&leases, json!({"spec": {"renewTime": "2026-01-31T12:00:05.000000Z", "ttlSeconds": 20}}))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_write_of_the_lease_keeps_the_status_and_a_write_of_the_status_keeps_the_spec() {
    let leases = leases().await;
    let created = create(&leases, ended(2)).await;

    let forged = Lease { status: Some(granted(1)), ..created.clone() };
    let kept = leases.replace("session-42", &PostParams::default(), &forged).await.unwrap();
    assert_eq!(kept.status, created.status);
    let kept = merge(&leases, json!({"status": {"endTime": null, "term": 1}})).await.unwrap();
    assert_eq!(kept.status, created.status);

    let forged = json!({"spec": {"ttlSeconds": 99}, "status": {"term": 3}});
    let kept = merge_status(&leases, forged).await.unwrap();
    assert_eq!(kept.spec, created.spec);
}

#[tokio::test]
async fn a_lease_created_with_a_status_has_none() {
    let leases = leases().await;
    let forged = Lease { status: Some(ended(7)), ..lease() };
    let created = leases.create(&PostParams::default(), &forged).await.unwrap();
    assert_eq!(created.status, None);
}

#[tokio::test]
async fn a_renew_time_cannot_be_removed() {
    const MESSAGE: &str = "spec.renewTime, once set, can't be removed: change it to renew the lease";
    let leases = leases().await;
    let created = create(&leases, granted(1)).await;
    let answer = refused(merge(&leases, json!({"spec": {"renewTime": null}})).await);
    assert!(answer.contains(MESSAGE), "{answer}");

    let mut without = created;
    without.spec.renew_time = None;
    let answer = refused(leases.replace("session-42", &PostParams::default(), &without).await);
    assert!(answer.contains(MESSAGE), "{answer}");
}

#[tokio::test]
async fn a_renew_time_applied_once_cannot_be_left_out_of_the_next_apply() {
    let leases = leases().await;
    let apply = |spec: Value| {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": "session-42"}, "spec": spec,
        });
        let leases = leases.clone();
        async move { leases.patch("session-42", &PatchParams::apply("holder"), &Patch::Apply(lease)).await }
    };
    apply(json!({"ttlSeconds": 10, "renewTime": NOON})).await.unwrap();
    let answer = refused(apply(json!({"ttlSeconds": 10})).await);
    assert!(answer.contains("can't be removed"), "{answer}");
}

#[tokio::test]
async fn a_null_field_is_an_absent_field() {
    let leases = leases().await;
    let lease = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": "session-42"},
        "spec": {"ttlSeconds": 10, "renewTime": null, "holder": null, "suspend": null, "afterExpiry": null},
    });
    let created = create_raw(&leases, &lease).await.unwrap();
    assert_eq!(created["spec"], json!({"ttlSeconds": 10, "suspend": false, "afterExpiry": "Delete"}));
}

#[tokio::test]
async fn a_renew_time_replaced_by_null_is_removed_and_so_refused() {
    let leases = leases().await;
    create(&leases, granted(1)).await;
    let replace = json!([{"op": "replace", "path": "/spec/renewTime", "value": null}]);
    let patch = Patch::Json::<()>(serde_json::from_value(replace).unwrap());
    let answer = refused(leases.patch("session-42", &PatchParams::default(), &patch).await);
    assert!(answer.contains("can't be removed"), "{answer}");
}

/// Creates what our types would not let us write.
async fn create_raw(leases: &Api<Lease>, lease: &Value) -> kube::Result<Value> {
    let request = http::Request::post(leases.resource_url())
        .header("content-type", "application/json")
        .body(serde_json::to_vec(lease).unwrap())
        .unwrap();
    leases.clone().into_client().request(request).await
}

/// Creates a lease of a TTL of 10 seconds with other fields on top.
async fn create_with(leases: &Api<Lease>, fields: &Value) -> kube::Result<Value> {
    let mut lease = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"generateName": "session-"},
        "spec": {"ttlSeconds": 10},
    });
    let spec = lease["spec"].as_object_mut().unwrap();
    spec.extend(fields.as_object().unwrap().clone());
    create_raw(leases, &lease).await
}

#[tokio::test]
async fn seconds_below_one_or_above_the_maximum_are_refused() {
    let leases = leases().await;
    for field in ["ttlSeconds", "maxLifetimeSeconds", "warnBeforeSeconds"] {
        for seconds in [0, -1, i64::MIN] {
            let answer = refused(create_with(&leases, &json!({ field: seconds })).await);
            assert!(answer.contains("should be greater than or equal to 1"), "{answer}");
        }
        for seconds in [MAX_SECONDS + 1, i64::MAX] {
            let answer = refused(create_with(&leases, &json!({ field: seconds })).await);
            assert!(answer.contains("should be less than or equal to 9"), "{answer}");
        }
        create_with(&leases, &json!({ field: MAX_SECONDS })).await.unwrap();
        create_with(&leases, &json!({ field: 1 })).await.unwrap();
    }
}

#[tokio::test]
async fn seconds_must_be_a_whole_number() {
    let leases = leases().await;
    for seconds in [json!("10"), json!("10s"), json!("1h30"), json!(1.5), json!(true), json!([10])] {
        let answer = refused(create_with(&leases, &json!({ "ttlSeconds": seconds })).await);
        assert!(answer.contains("spec.ttlSeconds"), "{answer}");
    }
    let answer = refused(create_with(&leases, &json!({ "ttlSeconds": null })).await);
    assert!(answer.contains("spec.ttlSeconds: Required value"), "{answer}");
}

#[tokio::test]
async fn an_unknown_value_of_after_expiry_is_refused() {
    let leases = leases().await;
    for word in ["Keep", "delete", ""] {
        let answer = refused(create_with(&leases, &json!({ "afterExpiry": word })).await);
        assert!(answer.contains(r#"supported values: "Delete", "Retain""#), "{answer}");
    }
    create_with(&leases, &json!({"afterExpiry": "Retain"})).await.unwrap();
}

#[tokio::test]
async fn a_renew_time_must_be_a_time() {
    let leases = leases().await;
    for text in [
        "",
        "now",
        "2026-01-31",
        "2026-01-31 12:00:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31t12:00:00z",
        "2026-13-31T12:00:00Z",
        "2026-01-32T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:00:60Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00.1234567890Z",
        "2026-01-31T12:00:00+0100",
        " 2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Z\n",
    ] {
        let answer = refused(create_with(&leases, &json!({ "renewTime": text })).await);
        assert!(answer.contains("spec.renewTime"), "{answer}");
    }
    for text in
        [NOON, "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456789+14:00", "2026-01-31T12:00:00-09:30"]
    {
        create_with(&leases, &json!({ "renewTime": text })).await.unwrap();
    }
}

#[tokio::test]
async fn a_holder_of_a_thousand_characters_is_refused() {
    let leases = leases().await;
    let answer = refused(create_with(&leases, &json!({"holder": "x".repeat(1000)})).await);
    assert!(answer.contains("spec.holder: Too long"), "{answer}");
}

#[tokio::test]
async fn a_lease_follows_exactly_one_source() {
    let leases = leases().await;
    let one = "name exactly one source";
    for (from, message) in [
        (json!({}), one),
        (json!({"node": {"name": "a"}, "pod": {"name": "a"}}), one),
        (json!({"coordinationLease": {"name": "a"}, "lease": {"name": "a"}}), one),
        (json!({"node": {}}), "name"),
        (json!({"node": {"name": ""}}), "name"),
        (json!({"node": {"name": "a".repeat(254)}}), "name"),
        (json!({"lease": {"name": "other/a"}}), "must be a name without a namespace"),
        (json!({"pod": {"name": "a", "uid": "A"}}), "must be a uid"),
        (json!({"pod": {"name": "a", "onLoss": "Never"}}), "onLoss"),
    ] {
        let answer = refused(create_with(&leases, &json!({"renewFrom": from})).await);
        assert!(answer.contains(message), "{from}: {answer}");
    }
    let uid = "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10";
    for from in [
        json!({"node": {"name": "worker-1.example.com"}}),
        json!({"coordinationLease": {"name": "a"}}),
        json!({"lease": {"name": "a"}}),
        json!({"pod": {"name": "a", "uid": uid, "onLoss": "End"}}),
    ] {
        create_with(&leases, &json!({"renewFrom": from})).await.unwrap();
    }
}

#[tokio::test]
async fn a_status_has_a_condition_at_most_once() {
    let leases = leases().await;
    let created = leases.create(&PostParams::default(), &lease()).await.unwrap();
    let condition: Condition = serde_json::from_value(json!({
        "type": "Active", "status": "True", "reason": "Granted", "message": "", "lastTransitionTime": NOON,
    }))
    .unwrap();
    let twice = LeaseStatus { conditions: vec![condition.clone(), condition], ..granted(1) };
    let answer = refused(replace_status(&leases, &created, Some(twice)).await);
    assert!(answer.contains("status.conditions[1]: Duplicate value"), "{answer}");
}

#[tokio::test]
async fn the_term_of_a_lessor_never_decreases_until_the_lessor_is_deleted() {
    let client = client().await;
    let lessors: Api<Lessor> = Api::all(client.clone());
    let name = "crd-rules";
    let mut lessor = Lessor::new(name, LessorSpec {});
    let status =
        |term| LessorStatus { primary: Some("a".to_owned()), term: Some(term), ..LessorStatus::default() };
    let params = PostParams::default();
    lessors.create(&params, &lessor).await.unwrap();
    lessor.metadata = lessors.get(name).await.unwrap().metadata;

    lessor.status = Some(status(5));
    lessor.metadata = lessors.replace_status(name, &params, &lessor).await.unwrap().metadata;
    lessor.status = Some(status(4));
    let answer = refused(lessors.replace_status(name, &params, &lessor).await);
    assert!(answer.contains("status.term never decreases: another primary has taken over"), "{answer}");
    lessor.status = None;
    refused(lessors.replace_status(name, &params, &lessor).await);
    let release = json!({"status": {"primary": ""}});
    lessors.patch_status(name, &PatchParams::default(), &Patch::Merge(release)).await.unwrap();

    lessors.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
    let mut lessor = lessors.create(&params, &Lessor::new(name, LessorSpec {})).await.unwrap();
    lessor.status = Some(status(1));
    lessors.replace_status(name, &params, &lessor).await.unwrap();
    lessors.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
}

/// The columns of `kubectl get` without `-o wide`, and the cells of each row.
async fn table(leases: &Api<Lease>) -> (Vec<String>, Vec<Vec<Value>>) {
    let request = http::Request::get(leases.resource_url())
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = leases.clone().into_client().request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let narrow: Vec<bool> = columns.iter().map(|column| column["priority"] == 0).collect();
    let names = columns.iter().map(|column| column["name"].as_str().unwrap().to_owned());
    let shown = |(value, narrow): (_, &bool)| narrow.then_some(value);
    let rows = table["rows"].as_array().unwrap().iter().map(|row| {
        row["cells"]
            .as_array()
            .unwrap()
            .iter()
            .cloned()
            .zip(&narrow)
            .filter_map(|(cell, narrow)| narrow.then_some(cell))
    });
    (names.zip(&narrow).filter_map(shown).collect(), rows.map(Iterator::collect).collect())
}

#[tokio::test]
async fn a_list_of_leases_shows_their_state() {
    let leases = leases().await;
    let created = create(&leases, granted(1)).await;
    let status = json!({
        "specGeneration": 1, "term": 1, "attached": {"objects": 2, "keys": 3}, "follows": {"source": "node/a"},
        "conditions": [
            {"type": "Expiring", "status": "False", "reason": "No", "message": "", "lastTransitionTime": NOON},
            {"type": "Active", "status": "True", "reason": "Granted", "message": "", "lastTransitionTime": NOON},
        ],
    });
    replace_status(&leases, &created, serde_json::from_value(status).unwrap()).await.unwrap();
    let (columns, rows) = table(&leases).await;
    println!("{columns:?}\n{rows:?}");
    assert_eq!(columns, ["Name", "TTL", "HOLDER", "STATE", "RENEWED", "OBJECTS", "KEYS", "AGE"]);
    assert_eq!(rows[0][..4], [json!("session-42"), json!(10), json!(null), json!("Granted")]);
    assert_eq!(rows[0][5..7], [json!(2), json!(3)]);
}

/// A long name, like that of a Deployment's Pod.
const LONG_NAME: &str = "checkout-5d4f8c9b7d-x2x9k";
/// A holder, like the default of `kubectl lease grant`.
const LONG_HOLDER: &str = "ci@build-worker-17";

#[tokio::test]
async fn kubectl_shows_a_lease_with_long_names_in_a_terminal_of_100_columns() {
    let leases = leases().await;
    let spec = LeaseSpec {
        holder: Some(LONG_HOLDER.to_owned()),
        renew_time: Some(NOON.to_owned()),
        ttl_seconds: 3600,
        ..LeaseSpec::default()
    };
    let created = leases.create(&PostParams::default(), &Lease::new(LONG_NAME, spec)).await.unwrap();
    let status = json!({
        "specGeneration": 1, "term": 12_345_678, "attached": {"objects": 2, "keys": 31},
        "follows": {"source": "node/worker-1"}, "primary": LONG_NAME, "expiryTime": NOON,
        "conditions": [
            {"type": "Active", "status": "True", "reason": "Suspended", "message": "", "lastTransitionTime": NOON},
        ],
    });
    let lease = Lease { status: serde_json::from_value(status).unwrap(), ..created };
    leases.replace_status(LONG_NAME, &PostParams::default(), &lease).await.unwrap();
    let namespace = lease.metadata.namespace.as_deref().unwrap();

    let output = kubectl(&["get", "tl", "-n", namespace]).await;
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{output}");
    let header: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(header, ["NAME", "TTL", "HOLDER", "STATE", "RENEWED", "OBJECTS", "KEYS", "AGE"]);
    let row: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(row[..4], [LONG_NAME, "3600", LONG_HOLDER, "Suspended"]);
    assert_eq!(row[5..7], ["2", "31"]);

    let wide = kubectl(&["get", "tl", "-n", namespace, "-o", "wide"]).await;
    let lines: Vec<&str> = wide.lines().collect();
    let header: Vec<&str> = lines[0].split_whitespace().skip(7).collect();
    assert_eq!(header, ["FOLLOWS", "EXPIRES", "PRIMARY", "TERM", "AGE"]);
    let row: Vec<&str> = lines[1].split_whitespace().skip(7).collect();
    assert_eq!(row[..4], ["node/worker-1", NOON, LONG_NAME, "12345678"]);
}

#[tokio::test]
async fn kubectl_shows_a_lessor_with_long_names_in_a_terminal_of_100_columns() {
    let lessors: Api<Lessor> = Api::all(client().await);
    let name = "crd-rules-columns";
    let mut lessor = lessors.create(&PostParams::default(), &Lessor::new(name, LessorSpec {})).await.unwrap();
    let status = json!({
        "primary": format!("{LONG_NAME}_1a2b3c4d"), "term": 12_345_678, "leases": 100_000, "transitions": 12,
        "version": "0.1.0",
    });
    lessor.status = serde_json::from_value(status).unwrap();
    lessors.replace_status(name, &PostParams::default(), &lessor).await.unwrap();
    let output = kubectl(&["get", "lsr", name]).await;
    let wide = kubectl(&["get", "lsr", name, "-o", "wide"]).await;
    lessors.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
    assert!(output.lines().all(|line| line.chars().count() <= 100), "{output}");
    let words = |output: &str, line: usize| -> Vec<String> {
        output.lines().nth(line).unwrap().split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words(&output, 0), ["NAME", "PRIMARY", "TERM", "LEASES", "TRANSITIONS", "AGE"]);
    assert_eq!(words(&output, 1)[2..5], ["12345678", "100000", "12"]);
    assert_eq!(words(&wide, 0)[5], "VERSION");
    assert_eq!(words(&wide, 1)[5], "0.1.0");
}

/// The output of `kubectl` for an administrator of the cluster.
async fn kubectl(arguments: &[&str]) -> String {
    let cluster = Cluster::shared().await.unwrap();
    let output = Command::new(Tool::Kubectl.path().await.unwrap())
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_path())
        .args(arguments)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    text
}

#[tokio::test]
async fn kubectl_explains_each_field() {
    client().await;
    let spec = kubectl(&["explain", "tl.spec"]).await;
    for words in [
        "ttlSeconds\t<integer> -required-",
        "afterExpiry\t<string>\n  enum: Delete, Retain",
        "    Every change of this field renews the lease.\n",
        "    The lease ends at most this many seconds after its grant, even if it is\n    renewed.\n",
    ] {
        assert!(spec.contains(words), "{words:?} is missing");
    }
    let status = kubectl(&["explain", "lsr.status"]).await;
    assert!(status.contains("    The number of changes of the primary.\n"));
}

#[tokio::test]
async fn the_examples_are_accepted_and_stay_in_a_namespace_of_their_own() {
    let client = client().await;
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let documents: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(&file).unwrap()).unwrap();
        let mut leases = BTreeMap::new();
        let mut named = Vec::new();
        for document in documents {
            let name = document["metadata"]["name"].as_str().unwrap().to_owned();
            let apply = (PatchParams::apply("crd-rules"), Patch::Apply(&document));
            if document["kind"] == "Namespace" {
                assert_eq!(name, "lessor-examples", "{}", file.display());
                Api::<Namespace>::all(client.clone()).patch(&name, &apply.0, &apply.1).await.unwrap();
                continue;
            }
            assert_eq!(document["metadata"]["namespace"], "lessor-examples", "{}: {name}", file.display());
            if document["kind"] == "Lease" {
                let api: Api<Lease> = Api::namespaced(client.clone(), "lessor-examples");
                leases.insert(name.clone(), api.patch(&name, &apply.0, &apply.1).await.unwrap());
            } else {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), "lessor-examples");
                let applied = api.patch(&name, &apply.0, &apply.1).await.unwrap();
                let attachments = Attachments::parse(applied.annotations(), KeyForm::Data);
                assert_eq!(attachments.problems, [], "{}: {name}", file.display());
                let data = applied.data.unwrap_or_default();
                assert!(attachments.keys.keys().all(|key| data.contains_key(key.as_str())), "{name}");
                named.extend(attachments.whole.into_iter().chain(attachments.keys.into_values()));
            }
        }
        assert!(!named.is_empty(), "{}", file.display());
        assert!(
            named.iter().all(|lease| leases.contains_key(lease.as_str())),
            "{}: {named:?}",
            file.display()
        );
    }
    Api::<Namespace>::all(client)
        .delete("lessor-examples", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}
