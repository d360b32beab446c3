//! Traces of a live operator, as a collector gets them. Needs the feature otel: `just traces`.
#![allow(clippy::expect_used, reason = "a test may fail by panicking")]

use std::{process::Command, sync::Arc, time::Duration};

use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use lessor_api::{Lease, crd};
use lessor_cluster::Cluster;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{net::TcpListener, time::Instant};

/// How long a test waits for what must come soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// A collector: everything that it got.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<u8>>>);

impl Collector {
    /// Listens, and answers with its endpoint.
    async fn listen(&self) -> String {
        let got = self.0.clone();
        let take = async move |headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            got.lock().extend_from_slice(&body);
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await.expect("a server") });
        endpoint
    }

    /// Whether this text has come; texts are plain in protobuf.
    fn has(&self, text: &str) -> bool {
        self.0.lock().windows(text.len()).any(|part| part == text.as_bytes())
    }
}

#[tokio::test]
async fn a_collector_gets_a_span_for_each_request_and_no_data() {
    let cluster = Cluster::start().await.expect("a cluster");
    let client = cluster.client().expect("a client");
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crd::all() {
        let name = crd.metadata.name.clone().expect("a name");
        let params = PatchParams::apply("traces").force();
        crds.patch(&name, &params, &Patch::Apply(&crd)).await.expect("a crd");
    }
    let collector = Collector::default();
    let endpoint = collector.listen().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
    command.args(["run", "--min-ttl=1s", "--start-grace=1s", "--linger=0s", "--otlp-endpoint", &endpoint]);
    command.arg("--kubeconfig").arg(cluster.kubeconfig_path());
    let operator = cluster.spawn(&command, "operator").expect("an operator");

    let map = json!({
        "metadata": {"name": "endpoint", "annotations": {"lessor.dev/lease": "web-1"}},
        "data": {"address": "never-to-be-told"},
    });
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let map = serde_json::from_value(map).expect("a map");
    maps.create(&PostParams::default(), &map).await.expect("a map");
    let lease = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": "web-1"}, "spec": {"ttlSeconds": 1},
    });
    let lease: Lease = serde_json::from_value(lease).expect("a lease");
    let leases: Api<Lease> = Api::default_namespaced(client);
    let start = Instant::now();
    while leases.create(&PostParams::default(), &lease).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "the kind is never served");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    while maps.get_opt("endpoint").await.expect("an answer").is_some() {
        assert!(start.elapsed() < PATIENCE, "it is never removed: {}", operator.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // What waits is sent at the end.
    operator.stop().await.expect("an end");
    for text in
        ["lessor", "write-lessor", "write-status", "delete-object", "default/web-1", "default/endpoint", "ok"]
    {
        assert!(collector.has(text), "no span says {text:?}: {}", operator.log());
    }
    assert!(!collector.has("never-to-be-told"), "data is told");
}
