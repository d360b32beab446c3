//! The operator with the rights that `lessor rbac` prints, and with fewer.

use std::{path::PathBuf, process::Command};

use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind, TypeMeta},
};
use lessor_kit::world::{World, until};
use serde_json::{Value, json};

use crate::{failing::wait_kinds, things::Things};

/// The name of the operator's service account and its roles, in the world's namespace.
pub(crate) const ACCOUNT: &str = "operator";

/// What `lessor rbac` prints for the operator of this world.
pub(crate) fn printed(world: &World, args: &[&str]) -> Vec<DynamicObject> {
    let account = format!("{}/{ACCOUNT}", world.namespace);
    let name = format!("{}-{ACCOUNT}", world.namespace);
    let output = Command::new(env!("CARGO_BIN_EXE_lessor"))
        .args(["rbac", "--namespace", &world.namespace, "--lessor", &world.lessor])
        .args(["--service-account", &account, "--name", &name])
        .args(args)
        .output()
        .expect("lessor rbac");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let yaml = String::from_utf8(output.stdout).expect("text");
    yaml.split("---\n").skip(1).map(|yaml| serde_saphyr::from_str(yaml).expect("an object")).collect()
}

/// Applies objects of any kind.
pub(crate) async fn apply(world: &World, objects: &[DynamicObject]) {
    for object in objects {
        let TypeMeta { api_version, kind } = object.types.clone().expect("a kind");
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(world.client.clone(), namespace, &resource),
            None => Api::all_with(world.client.clone(), &resource),
        };
        let name = object.metadata.name.as_deref().expect("a name");
        let params = PatchParams::apply("administrator").force();
        api.patch(name, &params, &Patch::Apply(object)).await.expect("applied");
    }
}

/// Gives the operator of this world the rights that it needs, and answers with its token.
pub(crate) async fn operator_token(world: &World, args: &[&str]) -> String {
    let token = world.cluster.service_account_token(&world.namespace, ACCOUNT).await.expect("a token");
    apply(world, &printed(world, args)).await;
    token
}

/// A kubeconfig of the operator's own.
async fn kubeconfig(world: &World, args: &[&str]) -> PathBuf {
    operator_token(world, args).await;
    world.cluster.service_account_kubeconfig(&world.namespace, ACCOUNT).await.expect("a kubeconfig")
}

/// Takes a right of the operator away, or gives it back: the verbs for a resource in the world's namespace.
pub(crate) async fn set_verbs(world: &World, args: &[&str], resource: &str, verbs: &[&str]) {
    let mut objects = printed(world, args);
    for object in &mut objects {
        let rules = object.data.get_mut("rules").and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            if rule["resources"] == json!([resource]) {
                rule["verbs"] = json!(verbs);
            }
        }
        if let Some(rules) = object.data.get_mut("rules").and_then(Value::as_array_mut) {
            // A rule must have a verb.
            rules.retain(|rule| rule["verbs"] != json!([]));
        }
    }
    apply(world, &objects).await;
}

#[tokio::test]
async fn the_printed_rights_are_enough_for_everything_that_is_listed() {
    let world = World::new("enough").await;
    let widgets = Things::widgets(&world).await;
    let secrets = Things::secrets(&world);
    let args = ["--attachable", "secrets", "--attachable", &widgets.with_keys()];
    let kubeconfig = kubeconfig(&world, &args).await;
    let operator = world.operator_with(&kubeconfig, &args);
    world.wait_for_primary(&operator).await;
    for things in [&secrets, &widgets, &Things::config_maps(&world)] {
        things.make("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
        things.make("shared", json!({"lessor.dev/keys": things.keys(&[("a", "lease")])}), &["a", "b"]).await;
    }
    world.granted("lease", json!({"ttlSeconds": 2})).await;
    world.renew("lease").await.expect("a renewal");
    world.wait_event("lease", "Granted").await;
    world.wait_gone("lease").await;
    for things in [&secrets, &widgets, &Things::config_maps(&world)] {
        things.wait_gone("whole").await;
        things.wait_parts("shared", &["b"]).await;
    }
    world.granted("revoked", json!({"ttlSeconds": 600})).await;
    world.leases().delete("revoked", &Default::default()).await.expect("a deletion");
    world.wait_gone("revoked").await;
    // A change of primary, too.
    operator.stop().await.expect("it stops");
    let _operator = world.operator_with(&kubeconfig, &args);
    world.granted("later", json!({"ttlSeconds": 1})).await;
    world.wait_gone("later").await;
    let user = format!("system:serviceaccount:{}:{ACCOUNT}", world.namespace);
    let refused = world.cluster.audit().expect("an audit log").entries().expect("entries").by(&user);
    let refused = refused.filter(|entry| entry.code == 403);
    // A replica may be quicker than the API server with what it was just given.
    let refused = refused.filter(|entry| entry.verb != "watch");
    assert_eq!(refused.requests(), 0, "{refused}");
}

#[tokio::test]
async fn a_right_to_remove_that_is_missing_shows_at_the_lease_and_at_the_kind_and_can_be_given_back() {
    let world = World::new("nodelete").await;
    let args = ["--attachable", "secrets"];
    let kubeconfig = kubeconfig(&world, &args).await;
    set_verbs(&world, &args, "secrets", &["get", "watch"]).await;
    let secrets = Things::secrets(&world);
    let operator = world.operator_with(&kubeconfig, &args);
    world.wait_for_primary(&operator).await;
    for name in ["one", "two"] {
        secrets.make(name, json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    }
    world.config_map("other", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_map_gone("other").await;
    until("the lease says what hinders it", async || {
        let status = world.leases().get("lease").await.ok()?.status?;
        let said = |message: &str| message.contains("secret") && message.contains("forbidden");
        status.conditions.iter().any(|c| c.reason == "Retrying" && said(&c.message)).then_some(())
    })
    .await;
    wait_kinds(&world, "Forbidden", "secrets: the operator may not remove them").await;
    set_verbs(&world, &args, "secrets", &["get", "watch", "delete"]).await;
    world.wait_gone("lease").await;
    secrets.wait_gone("one").await;
    secrets.wait_gone("two").await;
    wait_kinds(&world, "Ready", "").await;
}
