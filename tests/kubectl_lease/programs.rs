//! The examples: programs in Rust, and in other languages, that hold leases.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use lessor_cluster::{Process, Tool};
use lessor_kit::world::{World, until};
use serde_json::json;

use crate::plugin::says;

/// A kubeconfig whose context has the world's namespace, as a developer's has.
pub(crate) async fn kubeconfig(world: &World) -> PathBuf {
    let kubectl = Tool::Kubectl.path().await.expect("kubectl");
    let kubeconfig = world.cluster.directory().join(format!("{}.kubeconfig", world.namespace));
    std::fs::copy(world.cluster.kubeconfig_path(), &kubeconfig).expect("a kubeconfig");
    let set = ["config", "set-context", "--current", "--namespace", &world.namespace];
    let output = Command::new(kubectl).env("KUBECONFIG", &kubeconfig).args(set).output().expect("kubectl");
    assert!(output.status.success(), "{output:?}");
    kubeconfig
}

async fn start(world: &World, program: &str, args: &[&str]) -> Process {
    let mut command = Command::new(lessor_kit::program::example(program));
    command.env("KUBECONFIG", kubeconfig(world).await).args(args);
    world.cluster.spawn(&command, program).expect("it starts")
}

#[tokio::test]
async fn services_that_registered_vanish_when_they_die_and_at_once_when_they_stop() {
    let world = World::new("services").await;
    let _operator = world.primary(&[]).await;
    let mut services = BTreeMap::new();
    for name in ["web-1", "web-2", "web-3"] {
        let service = start(&world, "register_service", &[name, "10.0.0.17:8080"]).await;
        says(&service, "is registered in configmap/endpoints").await;
        services.insert(name, service);
    }
    assert_eq!(world.keys("endpoints").await, ["web-1", "web-2", "web-3"]);
    services.remove("web-1").expect("web-1").kill().await.expect("a kill");
    assert!(services.remove("web-2").expect("web-2").stop().await.expect("a stop").success());
    world.wait_keys("endpoints", &["web-1", "web-3"]).await;
    world.wait_keys("endpoints", &["web-3"]).await;
    // The lease of the third is revoked, and it comes back.
    world.revoke("web-3").await;
    let service = &services["web-3"];
    says(service, "is no longer registered").await;
    until("it's registered again", async || {
        (service.log().matches("is registered in").count() == 2).then_some(())
    })
    .await;
    world.wait_keys("endpoints", &["web-3"]).await;
}

#[tokio::test]
async fn one_process_leads_and_the_next_has_a_greater_token() {
    let world = World::new("leaders").await;
    let _operator = world.primary(&[]).await;
    let first = start(&world, "leader_only_job", &["reports"]).await;
    says(&first, "leading with token ").await;
    let second = start(&world, "leader_only_job", &["reports"]).await;
    let token = async || {
        let map = world.config_maps().get_opt("reports-report").await.expect("an answer")?;
        map.metadata.annotations?.get("example.com/fencing-token")?.parse::<i64>().ok()
    };
    let before = until("the first one writes", token).await;
    assert!(!second.log().contains("leading"), "two lead: {}", second.log());
    first.kill().await.expect("a kill");
    says(&second, "leading with token ").await;
    until("the second one writes", async || token().await.filter(|token| *token > before)).await;
}

#[tokio::test]
async fn a_controller_sees_which_leases_hold() {
    let world = World::new("observer").await;
    let _operator = world.primary(&[]).await;
    world.granted("alice", json!({"ttlSeconds": 600, "holder": "alice"})).await;
    let _controller = start(&world, "observe_leases", &[]).await;
    let present = async |names: &[&str]| {
        until(&format!("{names:?} are there"), async || {
            let map = world.config_maps().get_opt("who-is-there").await.expect("an answer")?;
            let there: Vec<String> = map.data.unwrap_or_default().into_keys().collect();
            (there == names).then_some(())
        })
        .await;
    };
    present(&["alice"]).await;
    world.granted("bob", json!({"ttlSeconds": 2, "holder": "bob"})).await;
    present(&["alice", "bob"]).await;
    present(&["alice"]).await;
    world.revoke("alice").await;
    present(&[]).await;
}
