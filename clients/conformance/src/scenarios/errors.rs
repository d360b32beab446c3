//! Grants that can't succeed: the errors that the client reports.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde_json::json;

use super::Verdict;
use crate::{
    bench::{Setup, Stage},
    protocol::Command,
};

pub(super) async fn errors(stage: &Stage<'_>) -> Result<Verdict> {
    let world = &stage.bench.world;
    let adapter = stage.adapter(&Setup::default()).await?;
    let grant = |lease: &str, ttl| Command::Grant { lease: lease.to_owned(), ttl };
    world.granted(&stage.lease, json!({"ttlSeconds": 600})).await;
    let message = stage.refused(&adapter, grant(&stage.lease, 8), &["exists"]).await?;
    ensure!(message.contains(&stage.lease), "the message doesn't name the lease: {message}");
    let message = stage.refused(&adapter, grant("Not_A_Name", 8), &["invalid"]).await?;
    ensure!(message.contains("Not_A_Name"), "the message doesn't name what is invalid: {message}");
    stage.refused(&adapter, grant(&format!("{}-0", stage.lease), 0), &["invalid"]).await?;
    stage.proxy.disconnect();
    let message = stage.refused(&adapter, grant(&format!("{}-1", stage.lease), 8), &["unreachable"]).await?;
    ensure!(!message.trim().is_empty(), "an error without a message");
    drop(adapter);
    stage.proxy.heal();

    let token = world.cluster.service_account_token(&world.namespace, &stage.lease).await?;
    let kubeconfig = Some(stage.kubeconfig_of(json!({"token": token}))?);
    let adapter = stage.adapter(&Setup { kubeconfig, ..Setup::default() }).await?;
    let message = stage.refused(&adapter, grant(&format!("{}-2", stage.lease), 8), &["forbidden"]).await?;
    ensure!(message.contains("cannot create"), "the message doesn't name the missing right: {message}");

    let kubeconfig = Some(stage.kubeconfig_of(json!({"token": "stale"}))?);
    let adapter = stage.adapter(&Setup { kubeconfig, ..Setup::default() }).await?;
    stage.refused(&adapter, grant(&format!("{}-3", stage.lease), 8), &["unauthorized"]).await?;
    stage.exits(&adapter, 0).await?;
    Ok(Verdict::Passed)
}

pub(super) async fn not_granted(stage: &Stage<'_>) -> Result<Verdict> {
    let name = format!("{}-{}", stage.bench.world.namespace, stage.lease);
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    let namespaces: Api<Namespace> = Api::all(stage.bench.world.client.clone());
    namespaces.create(&PostParams::default(), &namespace).await?;
    let adapter = stage.adapter(&Setup { namespace: Some(name), ..Setup::default() }).await?;
    let grant = Command::Grant { lease: stage.lease.clone(), ttl: 8 };
    let message = stage.refused(&adapter, grant, &["not-granted"]).await?;
    ensure!(
        message.contains("operator"),
        "the message doesn't name the operator as the place to look: {message}"
    );
    Ok(Verdict::Passed)
}
