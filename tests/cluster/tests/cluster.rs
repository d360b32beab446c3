//! A cluster starts, answers, and is gone at the end.
#![allow(clippy::expect_used, clippy::print_stdout)] // a test may fail by panicking, and prints its figures

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use lessor_cluster::{Cluster, Error};

#[tokio::test]
async fn a_cluster_starts_and_answers() -> Result<(), Error> {
    let started = tokio::time::Instant::now();
    let cluster = Cluster::start().await?;
    println!("started in {} ms", started.elapsed().as_millis());
    let namespaces: Api<Namespace> = Api::all(cluster.client()?);
    let namespaces = namespaces.list(&ListParams::default()).await.expect("an administrator may list");
    assert!(namespaces.items.iter().any(|namespace| namespace.metadata.name.as_deref() == Some("default")));
    let version = cluster.version().await?;
    assert_eq!(
        (version.git_version.as_str(), version.major.as_str(), version.minor.as_str()),
        ("v1.36.3", "1", "36")
    );
    let directory = cluster.directory().to_owned();
    drop(cluster);
    assert!(!directory.exists(), "{} should be removed", directory.display());
    Ok(())
}
