//! A cluster starts, answers, obeys, and is gone at the end.
#![allow(clippy::expect_used, clippy::print_stdout)] // a test may fail by panicking, and prints its figures

use std::{collections::BTreeMap, process::Command, time::Duration};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use lessor_cluster::{Cluster, Error};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        data: Some(BTreeMap::from([("key".to_owned(), "value".to_owned())])),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_cluster_starts_answers_and_is_gone_when_dropped() -> Result<(), Error> {
    let started = Instant::now();
    let cluster = Cluster::start().await?;
    println!("started in {} ms", started.elapsed().as_millis());
    let namespaces: Api<Namespace> = Api::all(cluster.client()?);
    let namespaces = namespaces.list(&ListParams::default()).await.expect("an administrator may list");
    assert!(namespaces.items.iter().any(|namespace| namespace.metadata.name.as_deref() == Some("default")));
    let version = cluster.version().await?;
    let version = (version.git_version.as_str(), version.major.as_str(), version.minor.as_str());
    assert_eq!(version, ("v1.36.3", "1", "36"));
    let (directory, stopping) = (cluster.directory().to_owned(), Instant::now());
    drop(cluster);
    println!("stopped in {} ms", stopping.elapsed().as_millis());
    assert!(!directory.exists(), "{} should be removed", directory.display());
    Ok(())
}

#[tokio::test]
async fn servers_come_back_with_their_data_and_address() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let (api_server, etcd) = (cluster.api_server()?, cluster.etcd()?);
    let mut config = cluster.client_config();
    config.default_retry = false;
    let maps: Api<ConfigMap> = Api::default_namespaced(kube::Client::try_from(config).expect("a client"));
    maps.create(&PostParams::default(), &config_map("kept")).await.expect("it can be made");

    let before = api_server.process().pid();
    api_server.kill().await?;
    maps.get("kept").await.expect_err("no server is there to answer");
    let restarted = Instant::now();
    api_server.restart().await?;
    cluster.wait_ready().await?;
    println!("API server restarted in {} ms", restarted.elapsed().as_millis());
    assert_ne!(api_server.process().pid(), before);
    maps.get("kept").await.expect("killing the API server loses nothing");

    etcd.kill().await?;
    etcd.restart().await?;
    cluster.wait_ready().await?;
    maps.get("kept").await.expect("killing etcd loses nothing");

    api_server.pause()?;
    timeout(Duration::from_secs(1), maps.get("kept")).await.expect_err("a paused server answers nothing");
    api_server.resume()?;
    maps.get("kept").await.expect("a resumed server answers");

    let stopping = Instant::now();
    api_server.stop().await?;
    println!("API server stopped in {} ms", stopping.elapsed().as_millis());
    Ok(())
}

#[tokio::test]
async fn a_service_account_may_do_what_rbac_grants_it() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let account = cluster.service_account_client("default", "reader").await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(account);
    let refused = maps.list(&ListParams::default()).await.expect_err("nothing is granted yet");
    assert!(matches!(&refused, kube::Error::Api(status) if status.is_forbidden()), "{refused}");

    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": "reader" },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"] }],
    }))
    .expect("a role");
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "reader" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": "default", "name": "reader" }],
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
    }))
    .expect("a role binding");
    Api::<Role>::default_namespaced(cluster.client()?)
        .create(&PostParams::default(), &role)
        .await
        .expect("it can be made");
    Api::<RoleBinding>::default_namespaced(cluster.client()?)
        .create(&PostParams::default(), &binding)
        .await
        .expect("it can be made");
    // The authorizer learns of it by a watch.
    timeout(Duration::from_secs(10), async {
        while maps.list(&ListParams::default()).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the account may list");
    maps.create(&PostParams::default(), &config_map("refused")).await.expect_err("it may not write");
    Ok(())
}

#[tokio::test]
async fn a_user_is_who_the_test_says() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.user_client("somebody", &["nobody"])?);
    let refused = maps.list(&ListParams::default()).await.expect_err("nothing is granted");
    assert!(refused.to_string().contains("somebody"), "{refused}");
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.user_client("root", &["system:masters"])?);
    maps.list(&ListParams::default()).await.expect("masters may do everything");
    Ok(())
}

#[tokio::test]
async fn the_controller_manager_empties_deleted_namespaces() -> Result<(), Error> {
    let started = Instant::now();
    let cluster = Cluster::builder().controller_manager(true).start().await?;
    println!("started with controllers in {} ms", started.elapsed().as_millis());
    let namespaces: Api<Namespace> = Api::all(cluster.client()?);
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some("short".to_owned()), ..Default::default() },
        ..Default::default()
    };
    namespaces.create(&PostParams::default(), &namespace).await.expect("it can be made");
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client()?, "short");
    maps.create(&PostParams::default(), &config_map("inside")).await.expect("it can be made");
    let deleted = Instant::now();
    namespaces.delete("short", &DeleteParams::default()).await.expect("it can be deleted");
    timeout(Duration::from_secs(60), async {
        while namespaces.get_opt("short").await.expect("an answer").is_some() {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("the namespace goes");
    println!("namespace gone after {} ms", deleted.elapsed().as_millis());
    Ok(())
}

#[tokio::test]
async fn the_error_of_a_failed_server_contains_its_log() {
    let error = Cluster::builder()
        .api_server_args(["--no-such-flag"])
        .start()
        .await
        .expect_err("the API server doesn't know the flag");
    assert!(matches!(error, Error::Exited { .. }), "{error}");
    assert!(error.to_string().contains("unknown flag: --no-such-flag"), "{error}");
}

#[tokio::test]
async fn a_spawned_program_can_be_paused_stopped_and_read() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let mut command = Command::new("sh");
    command.args(["-c", "trap 'echo over; exit 7' TERM; while :; do echo $WORD; sleep 0.01; done"]);
    let program = cluster.spawn(command.env("WORD", "tick"), "ticker")?;
    let ticks = || program.log().matches("tick").count();
    let moves = async || {
        let before = ticks();
        sleep(Duration::from_millis(300)).await;
        ticks() > before
    };
    assert!(moves().await, "it prints: {}", program.log());
    program.pause()?;
    sleep(Duration::from_millis(50)).await;
    assert!(!moves().await, "paused, it prints nothing");
    program.resume()?;
    assert!(moves().await, "resumed, it prints again");
    assert_eq!(program.stop().await?.code(), Some(7));
    assert!(program.log().ends_with("over\n"));
    Ok(())
}
