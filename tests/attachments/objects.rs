//! Objects that are special: large, many keys, many leases, immutable, owned, half deleted, or managed by others.

use futures::future::join_all;
use kube::api::{Patch, PatchParams};
use lessor_kit::world::{World, until};
use serde_json::{Map, Value, json};

use crate::things::{Things, annotations_of};

#[tokio::test]
async fn an_immutable_secret_keeps_its_keys_and_goes_as_a_whole() {
    let world = World::new("immutable").await;
    let secrets = Things::secrets(&world);
    let _operator = world.primary(&["--attachable", "secrets"]).await;
    for (name, annotation) in [("keyed", "key.lessor.dev/a"), ("whole", "lessor.dev/lease")] {
        let annotations = json!({annotation: format!("{name}-lease")});
        secrets
            .create(json!({
                "metadata": {"name": name, "annotations": annotations}, "data": {"a": ""}, "immutable": true,
            }))
            .await;
        world.granted(&format!("{name}-lease"), json!({"ttlSeconds": 1})).await;
    }
    secrets.wait_gone("whole").await;
    world.wait_gone("whole-lease").await;
    until("the release is hindered", async || {
        let status = world.leases().get("keyed-lease").await.ok()?.status?;
        let said = |message: &str| message.contains("secret") && message.contains("immutable");
        status.conditions.iter().any(|c| c.reason == "Hindered" && said(&c.message)).then_some(())
    })
    .await;
    secrets.wait_parts("keyed", &["a"]).await;
    secrets.delete("keyed").await;
    world.wait_gone("keyed-lease").await;
}

#[tokio::test]
async fn an_object_that_others_own_goes_and_its_owner_stays() {
    let world = World::new("owned").await;
    let _operator = world.primary(&[]).await;
    let owner = world.config_map("owner", json!({}), &["a"]).await;
    let maps = Things::config_maps(&world);
    maps.create(json!({
        "metadata": {
            "name": "owned", "annotations": {"lessor.dev/lease": "lease"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
    }))
    .await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    maps.wait_gone("owned").await;
    assert!(maps.get("owner").await.is_some());
}

#[tokio::test]
async fn a_key_goes_from_an_object_that_is_being_deleted() {
    let world = World::new("terminating").await;
    let _operator = world.primary(&[]).await;
    let maps = Things::config_maps(&world);
    maps.create(json!({
        "metadata": {
            "name": "slow", "annotations": {"key.lessor.dev/a": "lease"}, "finalizers": ["example.com/slow"],
        },
        "data": {"a": "goes", "b": "stays"},
    }))
    .await;
    maps.delete("slow").await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    maps.wait_parts("slow", &["b"]).await;
}

#[tokio::test]
async fn a_thousand_keys_of_one_object_go_with_one_request() {
    let world = World::new("thousand").await;
    let _operator = world.primary(&[]).await;
    let maps = Things::config_maps(&world);
    let names: Vec<String> = (0..1000).map(|number| format!("key-{number}")).collect();
    let keys: Map<String, Value> = names.iter().map(|name| (name.clone(), json!("lease"))).collect();
    let mut data: Map<String, Value> = names.iter().map(|name| (name.clone(), json!("value"))).collect();
    data.insert("other".to_owned(), json!("stays"));
    let annotations = json!({"lessor.dev/keys": Value::Object(keys).to_string()});
    maps.create(json!({"metadata": {"name": "large", "annotations": annotations}, "data": data})).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    maps.wait_parts("large", &["other"]).await;
    let patches = world.all_asked().resource("", "configmaps").verb("patch").requests();
    assert_eq!(patches, 1);
}

#[tokio::test]
async fn a_key_of_an_object_of_one_megabyte_goes_and_the_rest_stays() {
    let world = World::new("megabyte").await;
    let _operator = world.primary(&[]).await;
    let maps = Things::config_maps(&world);
    let large = "x".repeat(1_000_000);
    maps.create(json!({
        "metadata": {"name": "large", "annotations": {"key.lessor.dev/small": "lease"}},
        "data": {"small": "goes", "large": large},
    }))
    .await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    let left = maps.wait_parts("large", &["large"]).await;
    assert_eq!(left.data["data"]["large"], json!(large));
}

#[tokio::test]
async fn an_object_attached_to_fifty_leases_loses_each_key_with_its_own() {
    let world = World::new("fifty").await;
    let _operator = world.primary(&[]).await;
    let maps = Things::config_maps(&world);
    let leases: Vec<String> = (0..50).map(|number| format!("lease-{number:02}")).collect();
    let keys: Map<String, Value> = leases.iter().map(|lease| (lease.clone(), json!(lease))).collect();
    let data = keys.clone();
    let annotations = json!({"lessor.dev/keys": Value::Object(keys).to_string()});
    maps.create(json!({"metadata": {"name": "shared", "annotations": annotations}, "data": data})).await;
    // Every second one ends.
    let ttl = |number: usize| if number.is_multiple_of(2) { 2 } else { 600 };
    join_all(
        leases
            .iter()
            .enumerate()
            .map(|(number, lease)| world.granted(lease, json!({"ttlSeconds": ttl(number)}))),
    )
    .await;
    for lease in leases.iter().step_by(2) {
        world.wait_gone(lease).await;
    }
    let left: Vec<&str> = leases.iter().skip(1).step_by(2).map(String::as_str).collect();
    let shared = maps.wait_parts("shared", &left).await;
    let keys: Map<String, Value> = left.iter().map(|lease| ((*lease).to_owned(), json!(lease))).collect();
    assert_eq!(annotations_of(&shared), json!({"lessor.dev/keys": Value::Object(keys).to_string()}));
}

#[tokio::test]
async fn a_key_that_an_apply_manager_owns_goes_and_comes_back_only_when_it_applies_again() {
    let world = World::new("applied").await;
    let _operator = world.primary(&["--pending-warning", "1s"]).await;
    let maps = Things::config_maps(&world);
    let applied = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "applied", "annotations": {"key.lessor.dev/a": "lease"}},
        "data": {"a": "goes", "b": "stays"},
    });
    let apply = async || {
        maps.api.patch("applied", &PatchParams::apply("ci"), &Patch::Apply(&applied)).await.expect("applied")
    };
    apply().await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    let left = maps.wait_parts("applied", &["b"]).await;
    assert_eq!(annotations_of(&left), json!({}));
    // A user who applies it again attaches it again, to a lease that isn't there: it waits.
    let again = apply().await;
    assert_eq!(maps.parts(&again), ["a", "b"]);
    world.wait_event("applied", "AttachmentPending").await;
    maps.wait_parts("applied", &["a", "b"]).await;
}

#[tokio::test]
async fn a_key_that_kubectl_applied_goes_and_kubectl_goes_on() {
    let world = World::new("kubectl").await;
    let _operator = world.primary(&[]).await;
    let maps = Things::config_maps(&world);
    let file = |annotations: Value, data: Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "applied", "namespace": world.namespace, "annotations": annotations},
            "data": data,
        })
    };
    let kubectl = lessor_cluster::Tool::Kubectl.path().await.expect("kubectl");
    let apply = async |object: Value| {
        let path = std::env::temp_dir().join(format!("{}.json", world.namespace));
        std::fs::write(&path, object.to_string()).expect("a file");
        let mut command = tokio::process::Command::new(&kubectl);
        command.arg("--kubeconfig").arg(world.cluster.kubeconfig_path()).args(["apply", "-f"]).arg(&path);
        let output = command.output().await.expect("kubectl");
        std::fs::remove_file(&path).expect("no file");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    apply(file(json!({"key.lessor.dev/a": "lease"}), json!({"a": "goes", "b": "stays"}))).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    maps.wait_parts("applied", &["b"]).await;
    apply(file(json!({}), json!({"b": "changed"}))).await;
    let left = maps.wait_parts("applied", &["b"]).await;
    assert_eq!(left.data["data"]["b"], "changed");
}
