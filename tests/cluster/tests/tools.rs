//! The command line tools run against the cluster, and understand its version.
#![allow(clippy::expect_used)] // a test may fail by panicking

use std::process::Command;

use lessor_cluster::{Cluster, Error, Tool};

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the binary can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn kubectl_parses_the_version() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let kubectl = Tool::Kubectl.path().await?;
    let kubeconfig = cluster.kubeconfig_path();
    let said = run(Command::new(&kubectl).args(["version", "--kubeconfig"]).arg(kubeconfig));
    assert!(said.contains("Server Version: v1.36.3"), "{said}");
    // It compares the versions, so it has parsed them both.
    assert!(!said.contains("WARNING"), "{said}");
    Ok(())
}

#[tokio::test]
async fn helm_parses_the_version() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let helm = Tool::Helm.path().await?;
    let chart = cluster.directory().join("chart");
    std::fs::create_dir_all(chart.join("templates")).expect("the cluster's directory takes files");
    std::fs::write(
        chart.join("Chart.yaml"),
        "apiVersion: v2\nname: versions\nversion: 1.0.0\nkubeVersion: '>=1.36.0'\n",
    )
    .and_then(|()| {
        let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: versions}\n\
                        data: {version: '{{ .Capabilities.KubeVersion.Version }}'}\n";
        std::fs::write(chart.join("templates/configmap.yaml"), template)
    })
    .expect("the cluster's directory takes files");
    let said = run(Command::new(helm).args(["install", "versions"]).arg(&chart).args([
        "--debug",
        "--kubeconfig",
        &cluster.kubeconfig_path().display().to_string(),
    ]));
    assert!(said.contains("version: 'v1.36.3'"), "{said}");
    Ok(())
}
