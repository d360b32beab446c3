//! The audit log counts requests and keeps bodies.
#![allow(clippy::expect_used)] // a test may fail by panicking

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams, WatchParams},
};
use lessor_cluster::{Cluster, Error, audit::Level};
use serde_json::json;

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "key": "value" } }))
        .expect("a ConfigMap")
}

#[tokio::test]
async fn requests_are_counted_by_who_and_what() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let audit = cluster.audit()?;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.user_client("counter", &["system:masters"])?);
    let mark = audit.mark()?;
    for name in ["one", "two"] {
        maps.create(&PostParams::default(), &config_map(name)).await.expect("it can be made");
    }
    maps.create(&PostParams::default(), &config_map("two")).await.expect_err("it is there already");
    maps.list(&ListParams::default()).await.expect("a list");
    drop(maps.watch(&WatchParams::default(), "0").await.expect("a watch"));

    let entries = audit.since(mark)?.by("counter").resource("", "configmaps");
    assert_eq!(entries.clone().writes().requests(), 3, "{entries}");
    assert_eq!(entries.clone().verb("create").accepted().requests(), 2, "{entries}");
    assert_eq!(entries.clone().verb("list").requests(), 1, "{entries}");
    assert_eq!(entries.clone().verb("watch").requests(), 1, "{entries}");
    assert_eq!(entries.filter(|entry| entry.code == 409).len(), 1);
    assert_eq!(audit.since(audit.mark()?)?.by("counter").len(), 0);
    Ok(())
}

#[tokio::test]
async fn bodies_are_kept_where_the_test_asks() -> Result<(), Error> {
    let cluster = Cluster::builder().audit_level("", "configmaps", Level::RequestResponse).start().await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client()?);
    maps.create(&PostParams::default(), &config_map("one")).await.expect("it can be made");
    let patch = Patch::Merge(json!({ "data": { "key": "other" } }));
    maps.patch("one", &PatchParams::default(), &patch).await.expect("it can be patched");
    let patches = cluster.audit()?.entries()?.verb("patch").resource("", "configmaps");
    let [patch] = &patches[..] else { panic!("one patch, not\n{patches}") };
    assert_eq!(patch.name, "one");
    assert!(patch.received <= patch.at);
    assert_eq!(patch.request_object, Some(json!({ "data": { "key": "other" } })));
    let answer = patch.response_object.as_ref().expect("a body");
    assert_eq!(answer["data"]["key"], "other");
    Ok(())
}

#[tokio::test]
async fn the_servers_own_reads_are_left_out() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let own = cluster.audit()?.entries()?.by("system:apiserver").filter(|entry| !entry.is_write());
    assert!(own.is_empty(), "{own}");
    Ok(())
}
