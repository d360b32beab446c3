//! The chart's rights are those that the operator needs, each of them.

use std::{collections::BTreeSet, time::Duration};

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use lessor_cluster::Cluster;
use serde_json::{Value, json};

use crate::{
    release::{PATIENCE, Release, documents, quick, render, success},
    world::heavy,
};

/// A verb on a resource of a group.
type Right = (String, String, String);

/// Every right of the operator: what its roles hold.
fn rights(objects: &[Value]) -> BTreeSet<Right> {
    let roles = objects.iter().filter(|object| {
        let aggregated = object["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"]
            .is_string()
            || object["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"].is_string();
        let ours = object["metadata"]["annotations"]["helm.sh/hook"].is_null();
        !aggregated && ours && ["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap_or_default())
    });
    let texts = |list: &Value| -> Vec<String> {
        let items = list.as_array().expect("a list");
        items.iter().map(|item| item.as_str().expect("a text").to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in roles.flat_map(|role| role["rules"].as_array().expect("rules")) {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    rights.insert((verb, group.clone(), resource.clone()));
                }
            }
        }
    }
    rights
}

/// Lives through everything that takes a right: what the audit log then shows is what the operator needs.
#[tokio::test]
async fn no_right_is_missing_and_none_is_too_many() {
    let _alone = heavy().await;
    let cluster = Cluster::start().await.expect("a cluster");
    let release = Release::install(
        &cluster,
        "lessor",
        "shop",
        json!({"settings": quick("default"), "admission": {"finalizer": "operator", "attachments": false}}),
    )
    .await;
    let operator = release.primary().await;
    let given = rights(&documents(&success(release.helm("template", &[crate::release::CHART]).await)));

    // It warns a second after each renewal: from the second time on its Event is patched.
    release.granted("warned", json!({"ttlSeconds": 600, "warnBeforeSeconds": 599})).await;
    let start = tokio::time::Instant::now();
    let mut round = 0;
    let used = loop {
        let name = format!("round-{round}");
        round += 1;
        release.renew("warned").await;
        // Changed at the very moment that it ends, a lease or object has to be read again.
        release.map(&name, json!({"lessor.dev/lease": name}), &["a"]).await;
        release.map(&format!("{name}-keys"), json!({"key.lessor.dev/a": name}), &["a", "b"]).await;
        release.granted(&name, json!({"ttlSeconds": 2})).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let leases = release.leases();
        for n in 0.. {
            let patch = json!({"metadata": {"labels": {"n": n.to_string()}}});
            change(&release.maps(), &name, patch.clone()).await;
            if !change(&leases, &name, patch).await {
                break;
            }
        }
        release.maps().delete(&format!("{name}-keys"), &DeleteParams::default()).await.expect("a deletion");
        let audit = release.audit().await;
        let denied = audit.clone().filter(|entry| entry.code == 403);
        assert!(denied.is_empty(), "a right is missing: {}", denied[0]);
        let used: BTreeSet<Right> = audit
            .iter()
            .filter(|entry| !entry.resource.is_empty())
            .map(|entry| {
                let resource = if entry.subresource.is_empty() {
                    entry.resource.clone()
                } else {
                    format!("{}/{}", entry.resource, entry.subresource)
                };
                (entry.verb.clone(), entry.group.clone(), resource)
            })
            .collect();
        if used == given || start.elapsed() > PATIENCE {
            break used;
        }
    };
    let unused: Vec<_> = given.difference(&used).collect();
    let missing: Vec<_> = used.difference(&given).collect();
    assert!(unused.is_empty() && missing.is_empty(), "never used: {unused:?}; not given: {missing:?}");
    drop(operator);
}

/// Whether the object was there to be changed.
async fn change<K>(api: &Api<K>, name: &str, patch: Value) -> bool
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.is_ok()
}

/// What `lessor rbac` says for the same settings.
fn told(args: &[&str]) -> BTreeSet<Right> {
    let told = std::process::Command::new(env!("CARGO_BIN_EXE_lessor"))
        .arg("rbac")
        .args(args)
        .output()
        .expect("roles");
    assert!(told.status.success());
    rights(&documents(&String::from_utf8(told.stdout).expect("text")))
}

#[tokio::test]
async fn the_charts_rights_are_those_that_the_operator_itself_says_it_needs() {
    let kinds = "secrets,pods,deployments.apps:pointers,things.example.com/v1";
    let attachable = format!("attachable={{{kinds}}}");
    for (values, args) in [
        (vec![], vec![]),
        (vec!["--set", "watchNamespaces={one,two}"], vec!["--namespace", "one,two"]),
        (vec!["--set", &attachable], vec!["--attachable", kinds]),
    ] {
        assert_eq!(rights(&documents(&render(&values).await)), told(&args), "{values:?}");
    }
}

#[tokio::test]
async fn with_namespaces_the_only_right_in_the_whole_cluster_is_about_the_lessor() {
    let objects = documents(&render(&["--set", "watchNamespaces={one,two}"]).await);
    let cluster_wide: Vec<Value> =
        objects.iter().filter(|object| object["kind"] == "ClusterRole").cloned().collect();
    assert!(!cluster_wide.is_empty());
    for (_, group, resource) in rights(&cluster_wide) {
        assert_eq!(group, "lessor.dev");
        assert!(resource == "lessors" || resource == "lessors/status", "{resource}");
    }
    let namespaced: Vec<Value> = objects.iter().filter(|object| object["kind"] == "Role").cloned().collect();
    let of = |namespace: &str| -> Vec<Value> {
        namespaced.iter().filter(|role| role["metadata"]["namespace"] == namespace).cloned().collect()
    };
    assert_eq!(rights(&of("one")), rights(&of("two")));
    // Together they are what a release for all namespaces has.
    let everywhere = rights(&documents(&render(&[]).await));
    let both: BTreeSet<Right> = rights(&cluster_wide).union(&rights(&of("one"))).cloned().collect();
    assert_eq!(both, everywhere);
}
