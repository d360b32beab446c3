//! Upgrade, rollback, uninstall, and installing again.

use std::fs;

use k8s_openapi::{
    api::batch::v1::Job, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use lessor_api::{Lease, crd, lease::FINALIZER};
use lessor_kit::trial;
use serde_json::{Value, json};

use crate::release::{Alone, CHART, Release, copy_of_chart, failure, kubectl, quick, success, until};

/// A field that an earlier chart's definition lacks.
const FIELD: &str = "warnBeforeSeconds";

#[trial(long)]
async fn an_upgrade_brings_new_fields_and_a_rollback_keeps_all_leases() {
    let cluster = Alone::new().await;
    let values = json!({"settings": quick("default")});
    // A release of today, and one before it whose definition lacks a field.
    let old = cluster.directory().join("old-chart");
    copy_of_chart(&old);
    let mut definition = serde_json::to_value(crd::lease()).expect("json");
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let fields = definition.pointer_mut(spec).and_then(Value::as_object_mut).expect("fields");
    fields.remove(FIELD).expect("the field");
    let definition: CustomResourceDefinition = serde_json::from_value(definition).expect("a crd");
    fs::write(old.join("files/crds/leases.lessor.dev.yaml"), crd::to_yaml(&definition).expect("yaml"))
        .expect("a file");

    let release = Release::install(&cluster, "lessor", "lifecycle-1", values).await;
    success(release.helm("upgrade", &[old.to_str().expect("a path")]).await);
    let stored = async |name: &str| {
        let lease = release.lease(name, json!({"ttlSeconds": 600, FIELD: 5})).await;
        lease.spec.warn_before_seconds
    };
    until("the old definition is in force", async || {
        stored(&crate::release::unique("old")).await.is_none().then_some(())
    })
    .await;

    success(release.helm("upgrade", &[CHART]).await);
    until("the new definition is in force", async || {
        (stored(&crate::release::unique("new")).await == Some(5)).then_some(())
    })
    .await;
    let before = names(&release).await;

    success(release.helm("rollback", &["2"]).await);
    assert_eq!(names(&release).await, before);
    let operator = release.primary().await;
    release.renew(&before[0]).await;
    drop(operator);
}

#[trial(long)]
async fn leases_survive_an_uninstall_can_be_deleted_then_and_are_served_again_by_the_next_install() {
    let cluster = Alone::new().await;
    let values = json!({"settings": quick("default")});
    let release = Release::install(&cluster, "lessor", "lifecycle-2", values).await;
    let operator = release.primary().await;
    for name in ["kept", "deleted"] {
        release.map(name, json!({"lessor.dev/lease": name}), &["a"]).await;
        release.granted(name, json!({"ttlSeconds": 600})).await;
    }
    // A real uninstall ends the Pods; helm doesn't wait for that.
    operator.stop().await.expect("an end");
    uninstall(&release).await;

    for lease in release.leases().list(&Default::default()).await.expect("leases") {
        assert_eq!(lease.metadata.finalizers, None);
    }
    release.leases().delete("deleted", &DeleteParams::default()).await.expect("a deletion");
    release.wait_gone("deleted").await;
    release.maps().get("deleted").await.expect("what was attached stays");

    success(release.helm("install", &[CHART]).await);
    let operator = release.primary().await;
    until("the lease has its finalizer again", async || {
        let lease = release.leases().get("kept").await.expect("the lease");
        lease.metadata.finalizers.is_some_and(|names| names == [FINALIZER]).then_some(())
    })
    .await;
    release.leases().delete("kept", &DeleteParams::default()).await.expect("a deletion");
    release.wait_map_gone("kept").await;
    release.wait_gone("kept").await;
    drop(operator);
}

#[trial(long)]
async fn a_release_takes_over_what_kubectl_has_applied_with_its_leases() {
    let cluster = Alone::new().await;
    let plain = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/lessor.yaml");
    success(kubectl(&cluster, &["apply", "--filename", plain]).await);
    let values = json!({"settings": quick("default")});
    let release = Release::prepare(&cluster, "lessor", "lifecycle-4", values).await;
    until("the definitions are in force", async || {
        release.leases().list(&Default::default()).await.ok().map(drop)
    })
    .await;
    release.lease("before", json!({"ttlSeconds": 600})).await;

    // As docs/operations.md has it.
    let refused = failure(release.helm("install", &[CHART, "--create-namespace"]).await);
    assert!(refused.contains("invalid ownership metadata"), "{refused}");
    success(release.helm("install", &[CHART, "--create-namespace", "--take-ownership"]).await);
    let operator = release.primary().await;
    until("the lease is granted", async || {
        release.leases().get("before").await.ok().filter(Lease::is_granted)
    })
    .await;
    drop(operator);
}

#[trial(long)]
async fn an_uninstall_that_keeps_nothing_leaves_nothing() {
    let cluster = Alone::new().await;
    let values = json!({"settings": quick("default"), "crds": {"keep": false}});
    let release = Release::install(&cluster, "lessor", "lifecycle-3", values).await;
    let operator = release.primary().await;
    release.granted("held", json!({"ttlSeconds": 600})).await;
    operator.stop().await.expect("an end");
    uninstall(&release).await;
    let crds: Api<CustomResourceDefinition> = Api::all(release.client.clone());
    for name in ["leases.lessor.dev", "lessors.lessor.dev"] {
        until(&format!("{name} is gone"), async || {
            crds.get_opt(name).await.expect("an answer").is_none().then_some(())
        })
        .await;
    }
    let all = "clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,\
               mutatingadmissionpolicy,mutatingadmissionpolicybinding,all,role,rolebinding,serviceaccount,\
               networkpolicy,poddisruptionbudget,configmap";
    let args = ["get", all, "--all-namespaces", "--output=name", "--selector=app.kubernetes.io/name=lessor"];
    assert_eq!(success(kubectl(release.cluster, &args).await), "");
}

/// Where a release serves single namespaces, its rights are in there too, and go with them, often before the leases.
#[trial]
async fn a_namespace_that_was_deleted_with_its_leases_is_freed_by_detaching_their_finalizers() {
    let release = Release::in_namespaces("deleted").await;
    release.with_finalizer("left").await;
    release.leases().delete("left", &DeleteParams::default()).await.expect("a deletion");
    assert!(release.leases().get("left").await.expect("it stays").metadata.deletion_timestamp.is_some());
    let mut detach = std::process::Command::new(env!("CARGO_BIN_EXE_lessor"));
    detach.args(["detach-finalizers", "--namespace", &release.leases_in, "--kubeconfig"]);
    let detach = detach.arg(release.cluster.kubeconfig_path()).output().expect("a program that starts");
    assert!(success(detach).contains("from 1 leases"));
    release.wait_gone("left").await;
}

async fn names(release: &Release<'_>) -> Vec<String> {
    let leases: Vec<Lease> = release.leases().list(&Default::default()).await.expect("leases").items;
    leases.into_iter().filter_map(|lease| lease.metadata.name).collect()
}

/// `helm uninstall`, the Pod of its hook played by this test.
async fn uninstall(release: &Release<'_>) {
    let kubelet = async {
        let jobs: Api<Job> = Api::namespaced(release.client.clone(), &release.namespace);
        let job = until("helm runs its hook", async || {
            jobs.list(&Default::default()).await.expect("jobs").items.into_iter().next()
        })
        .await;
        let pod = job.spec.expect("a spec").template.spec.expect("a Pod's spec");
        let run = release.start(&pod, "uninstall").await;
        assert!(run.wait().await.expect("an end").success(), "{}", run.log());
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"status": {
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z", "succeeded": 1,
            "uncountedTerminatedPods": {},
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        }});
        let name = job.metadata.name.expect("a name");
        jobs.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
    };
    let (output, ()) = tokio::join!(release.helm("uninstall", &[]), kubelet);
    success(output);
}
