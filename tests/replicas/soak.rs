//! As long as you like: `just soak MINUTES`. Three replicas, hundreds of leases with holders that come and go, and every few
//! seconds something breaks.

use std::time::Duration;

use k8s_openapi::{
    api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PostParams},
};
use lessor_api::attachment::LEASE_ANNOTATION;
use lessor_cluster::proxy::Faults;
use lessor_kit::{trial, world::holder};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    holder::{Holder, Tally},
    replicas::{OwnCluster, Replicas, Way, wall, within},
};

/// Each generation of leases has so many: one in three is renewed for a while, and none is in the end.
const LEASES: usize = 300;
const TTL: u64 = 20;
/// How long a generation of holders renews.
const GENERATION: Duration = Duration::from_secs(60);
/// Whether a client resets the `managedFields` of leases: false until a renewal that isn't recorded counts after a restart.
const RESETS_MANAGED_FIELDS: bool = false;
/// How long there is peace between two incidents.
const PEACE: Duration = Duration::from_secs(10);
/// How long requests take at most while the network is slow.
const SLOW: Duration = Duration::from_millis(1500);
/// The policy that refuses removals for a while.
const POLICY: &str = "soak-refuses-removals";

#[trial(ignored)]
async fn leases_come_and_go_while_everything_breaks_again_and_again() {
    let minutes: u64 = std::env::var("SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let cluster = OwnCluster::start().await;
    let mut replicas = Replicas::three_on(cluster.0, "soak", Way::Proxied).await;
    let (mut generation, mut incident, mut ended, mut renewed) = (0, 0, 0, 0);
    let mut checker = replicas.checker();
    while Instant::now() < until {
        let names: Vec<String> = (0..LEASES).map(|i| format!("lease-{generation}-{i}")).collect();
        for name in &names {
            replicas.config_map(name, json!({"lessor.dev/lease": name}), &["a"]).await;
            replicas.lease_with_finalizer(name, json!({"ttlSeconds": TTL})).await;
        }
        let held: Vec<String> = names.iter().step_by(3).cloned().collect();
        let holder = Holder::of(&replicas, &held, Duration::from_secs(TTL / 4));
        let over = Instant::now() + GENERATION;
        while Instant::now() < over {
            sleep(PEACE).await;
            if let Some(death) = break_something(&mut replicas, incident).await {
                checker = checker.death(death);
            }
            incident += 1;
        }
        let Tally { accepted, ended: refused, .. } = holder.stop().await;
        renewed += accepted;
        ended += refused;
        generation += 1;
    }
    for replica in &replicas.all {
        replica.proxy().heal();
        replica.proxy().set_faults([]);
    }
    within(Duration::from_secs(600), "all leases are gone", async || {
        sleep(Duration::from_secs(1)).await;
        let left = replicas.leases().list_metadata(&ListParams::default()).await.ok()?;
        left.items.is_empty().then_some(())
    })
    .await;
    let leases = generation * LEASES;
    let writes = replicas.writes().requests();
    let figures = format!(
        "{minutes} minutes: {leases} leases, {renewed} renewals, {incident} incidents; {writes} writes of the operator, \
         {:.2} for each lease and what is attached to it",
        writes as f64 / leases as f64
    );
    let figures = replicas.check_with(&checker, figures);
    let maps = replicas.config_maps().list_metadata(&ListParams::default()).await.expect("config maps");
    let attached = maps.iter().filter(|map| map.annotations().contains_key(LEASE_ANNOTATION));
    assert_eq!(attached.count(), 0, "what was attached is left");
    assert_eq!(ended, 0, "leases that were renewed have ended");
    assert_eq!(figures.expired + figures.unlogged, generation * LEASES, "{figures}");
}

/// One incident after another, each over after some seconds. Answers when the API server died, if it did.
async fn break_something(replicas: &mut Replicas, number: usize) -> Option<Timestamp> {
    let primary = replicas.status().await.and_then(|status| crate::replicas::index_of(&status.primary?));
    // Mostly the primary, which has most to lose.
    let index = primary.filter(|_| !number.is_multiple_of(4)).unwrap_or(number % 3);
    let pause = Duration::from_secs(8);
    match number % 9 {
        0 => {
            replicas.all[index].process.kill().await.expect("it is killed");
            sleep(pause / 4).await;
            replicas.restart(index);
        }
        1 => {
            replicas.all[index].process.pause().expect("it is paused");
            sleep(pause).await;
            replicas.all[index].process.resume().expect("it goes on");
        }
        2 => {
            replicas.all[index].proxy().isolate();
            sleep(pause).await;
            replicas.all[index].proxy().heal();
        }
        3 => {
            for (seed, replica) in (number as u64..).zip(&replicas.all) {
                replica.proxy().set_faults([Faults::bad_day(seed)]);
            }
            sleep(pause).await;
            for replica in &replicas.all {
                replica.proxy().set_faults([]);
            }
        }
        4 => {
            replicas.all[index].process.stop().await.expect("it stops");
            replicas.restart(index);
        }
        6 => {
            refuse_removals(replicas).await;
            sleep(pause).await;
            allow_removals(replicas).await;
        }
        7 if RESETS_MANAGED_FIELDS => reset_managed_fields(replicas).await,
        8 => {
            for (seed, replica) in (number as u64..).zip(&replicas.all) {
                replica.proxy().set_faults([Faults::new(seed).latency(SLOW)]);
            }
            sleep(pause).await;
            for replica in &replicas.all {
                replica.proxy().set_faults([]);
            }
        }
        _ => {
            let server = replicas.cluster.api_server().expect("an API server");
            server.kill().await.expect("it is killed");
            let death = wall();
            sleep(pause / 4).await;
            server.restart().await.expect("it starts");
            replicas.cluster.wait_ready().await.expect("it is ready");
            return Some(death);
        }
    }
    None
}

/// Lets a policy refuse the removal of objects in the namespace of the leases.
async fn refuse_removals(replicas: &Replicas) {
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"], "operations": ["DELETE"],
            }]},
            "validations": [{
                "expression": format!("request.namespace != '{}'", replicas.namespace),
                "message": "it stays for now",
            }],
        },
    }))
    .expect("a policy");
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": POLICY}, "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    }))
    .expect("a binding");
    let params = PostParams::default();
    Api::all(replicas.client.clone()).create(&params, &policy).await.expect("a policy");
    Api::all(replicas.client.clone()).create(&params, &binding).await.expect("a binding");
}

async fn allow_removals(replicas: &Replicas) {
    let params = DeleteParams::default();
    let policies = Api::<ValidatingAdmissionPolicy>::all(replicas.client.clone());
    policies.delete(POLICY, &params).await.expect("it is deleted");
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(replicas.client.clone());
    bindings.delete(POLICY, &params).await.expect("it is deleted");
}

/// Makes the API server forget when leases were renewed, as a client does that replaces their `managedFields`.
async fn reset_managed_fields(replicas: &Replicas) {
    let leases = replicas.leases().list_metadata(&ListParams::default()).await.expect("leases");
    for lease in leases.items.iter().step_by(3) {
        let reset = Patch::Merge(json!({"metadata": {"managedFields": [{}]}}));
        match replicas.leases().patch(&lease.name_any(), &holder(), &reset).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{error}"),
        }
    }
}
