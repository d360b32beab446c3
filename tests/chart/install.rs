//! A fresh install works, with the rights that the chart gives and no others.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, api::ListParams};
use lessor_api::{Lease, Lessor};
use lessor_kit::trial;
use serde_json::json;

use crate::release::{Alone, CHART, Release, ask, quick, success, until};

#[trial(long)]
async fn a_fresh_install_serves_the_whole_cluster_and_its_own_test_passes() {
    let cluster = Alone::new().await;
    let values = json!({"settings": quick("default")});
    let release = Release::install(&cluster, "lessor", "install-1", values).await;
    let (one, two) = (release.primary().await, release.operator().await);
    until("both are ready", async || {
        let ready = ask(&one, "/readyz").await.0 == 200 && ask(&two, "/readyz").await.0 == 200;
        ready.then_some(())
    })
    .await;

    let said = helm_test(&release).await;
    assert!(said.contains("the lease was removed"), "{said}");

    // Any namespace is served.
    release.granted("anywhere", json!({"ttlSeconds": 1})).await;
    release.wait_gone("anywhere").await;
    let denied = release.audit().await.filter(|entry| entry.code == 403);
    assert!(denied.is_empty(), "the chart's rights don't suffice: {}", denied[0]);
}

#[trial]
async fn a_release_for_two_namespaces_serves_both_and_may_nothing_elsewhere() {
    let release = Release::in_namespaces("apart").await;
    let operator = release.primary().await;
    release.map("attached", json!({"lessor.dev/lease": "short"}), &["a"]).await;
    release.granted("short", json!({"ttlSeconds": 1})).await;
    release.wait_map_gone("attached").await;
    release.wait_gone("short").await;
    let denied = release.audit().await.filter(|entry| entry.code == 403);
    assert!(denied.is_empty(), "the chart's rights don't suffice: {}", denied[0]);

    let account = release.pod().await.service_account_name.expect("an account");
    let client =
        release.cluster.service_account_client(&release.namespace, &account).await.expect("a client");
    let elsewhere = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    assert!(is_forbidden(elsewhere.list(&ListParams::default()).await));
    let elsewhere = Api::<Lease>::namespaced(client.clone(), "default");
    assert!(is_forbidden(elsewhere.delete("any", &Default::default()).await));
    assert!(is_forbidden(Api::<Lease>::all(client).list(&ListParams::default()).await));
    drop(operator);
}

/// Each names its namespaces in its Lessor, and the one that names a namespace serves it.
#[trial(long)]
async fn of_two_installations_that_overlap_one_leaves_the_namespace_to_the_other() {
    let cluster = Alone::new().await;
    let values = json!({"settings": quick("default"), "exceptNamespaces": ["team-a"]});
    let everywhere = Release::install(&cluster, "lessor", "install-3", values).await;
    let operator = everywhere.primary().await;
    let mut settings = quick("team-a");
    settings["lessor"] = json!("team-a");
    let values = json!({"settings": settings, "watchNamespaces": ["team-a"], "crds": {"enabled": false}});
    let team = Release::install(&cluster, "team", "team-a", values).await;
    let teams = team.primary().await;

    let lessors: Api<Lessor> = Api::all(everywhere.client.clone());
    let served = async |status: &str| {
        until(&format!("its condition is {status}"), async || {
            let lessor = lessors.get("default").await.expect("a lessor").status?;
            let found = lessor.conditions.into_iter().find(|found| found.type_ == "NamespacesServed")?;
            (found.status == status).then_some(found.message)
        })
        .await
    };
    let message = served("False").await;
    assert!(message.contains("team-a: left to the installation of the Lessor team-a"), "{message}");
    assert!(
        operator.log().contains("another installation serves namespaces of this one"),
        "{}",
        operator.log()
    );
    // Each serves what is its own.
    let by = |lease: Lease| lease.status.and_then(|status| status.primary).unwrap_or_default();
    let (here, there) = (
        everywhere.granted("here", json!({"ttlSeconds": 600})).await,
        team.granted("there", json!({"ttlSeconds": 600})).await,
    );
    assert_ne!(by(here), by(there));
    for name in ["short-1", "short-2", "short-3"] {
        team.map(name, json!({"lessor.dev/lease": name}), &["a"]).await;
        team.granted(name, json!({"ttlSeconds": 1})).await;
        team.wait_map_gone(name).await;
        team.wait_gone(name).await;
    }
    let elsewhere = everywhere.audit().await.filter(|entry| entry.namespace == "team-a" && entry.code < 300);
    let writes = elsewhere.filter(|entry| !["get", "list", "watch"].contains(&&*entry.verb));
    assert!(writes.is_empty(), "it was left alone: {}", writes[0]);

    // The other is removed with its Lessor: what it served is served again.
    teams.stop().await.expect("an end");
    success(team.helm("uninstall", &["--no-hooks"]).await);
    lessors.delete("team-a", &Default::default()).await.expect("a deletion");
    success(everywhere.helm("upgrade", &[CHART, "--set-json", "exceptNamespaces=[]"]).await);
    served("True").await;
    team.leases().delete("there", &Default::default()).await.expect("a deletion");
    team.wait_gone("there").await;
}

/// In a dry run, where nothing goes, its own test passes too.
#[trial(long)]
async fn the_test_of_a_dry_run_expects_that_everything_stays() {
    let cluster = Alone::new().await;
    let mut settings = quick("default");
    settings["dryRun"] = json!(true);
    let release = Release::install(&cluster, "lessor", "install-2", json!({"settings": settings})).await;
    let operator = release.primary().await;
    let said = helm_test(&release).await;
    assert!(said.contains("still there"), "{said}");
    // What it made it has taken away itself: no finalizer keeps it.
    let left: Api<Lease> = Api::all(release.client.clone());
    assert_eq!(left.list(&ListParams::default()).await.expect("leases").items.len(), 0);
    drop(operator);
}

/// `helm test`, its Pod played by this test: what it says.
async fn helm_test(release: &Release<'_>) -> String {
    let (pods, others): (Vec<_>, Vec<_>) =
        release.hooks("test").await.into_iter().partition(|hook| hook["kind"] == "Pod");
    release.apply(&others).await;
    let pod: Pod = serde_json::from_value(pods[0].clone()).expect("a Pod");
    let check = release.start(&pod.spec.expect("a spec"), "check").await;
    let status = check.wait().await.expect("an end");
    assert!(status.success(), "{}", check.log());
    check.log()
}

fn is_forbidden<T>(result: kube::Result<T>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.is_forbidden())
}
