//! Clients whose rights or credentials end.

use std::{fs, os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::rbac::v1::{Role, RoleBinding},
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, api::PostParams};
use lessor_cluster::proxy::{Faults, Seen};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;

use super::{PATIENCE, Verdict};
use crate::bench::{Setup, Stage};

/// How long a token is good.
const LIFE: Duration = Duration::from_secs(3);

/// Renewals are refused, since the right to patch is missing.
pub(super) async fn refused(stage: &Stage<'_>) -> Result<Verdict> {
    let token = account(stage, &["create", "get", "list", "watch", "delete"]).await?;
    let kubeconfig = Some(stage.kubeconfig_of(json!({"token": token}))?);
    stage.disturbed();
    let (adapter, _) = stage.holder_with(&Setup { kubeconfig, ..Setup::default() }).await?;
    stage.live(&adapter, 1.1).await?;
    let lost = adapter.lost(&stage.subject(), PATIENCE).await?;
    ensure!(
        lost.reason == "not-renewed",
        "the reason is {:?}, not not-renewed: {}",
        lost.reason,
        lost.message
    );
    ensure!(
        lost.message.contains("cannot patch"),
        "the message doesn't name the missing right: {}",
        lost.message
    );
    stage.exits(&adapter, 4).await?;
    Ok(Verdict::Passed)
}

/// Credentials come from a program, and each is good for a few seconds.
pub(super) async fn expire(stage: &Stage<'_>) -> Result<Verdict> {
    let first = account(stage, &["*"]).await?;
    let good = Arc::new(Mutex::new((first.clone(), first)));
    let (file, script) = (stage.file("credential"), stage.file("sh"));
    fs::write(&script, format!("#!/bin/sh\ncat '{}'\n", file.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let renew = async || -> Result<()> {
        let token = token(stage).await?;
        let expires = Timestamp::now() + SignedDuration::try_from(LIFE)?;
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": token, "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()},
        });
        // In one step: a client may read it at any time.
        let next = stage.file("credential-next");
        fs::write(&next, credential.to_string())?;
        fs::rename(&next, &file)?;
        let mut good = good.lock();
        *good = (std::mem::replace(&mut good.1, token.clone()), token);
        Ok(())
    };
    renew().await?;
    let accepted = Arc::clone(&good);
    // The one before is still good: a request may be on its way.
    let is_old = move |seen: &Seen| {
        let accepted = accepted.lock();
        seen.token != accepted.0 && seen.token != accepted.1
    };
    stage.proxy.set_faults([Faults::new(1).only(is_old).answer(401, 1.0)]);
    let exec = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": script, "interactiveMode": "Never",
    }});
    let kubeconfig = Some(stage.kubeconfig_of(exec)?);
    let living = async {
        let (adapter, _) = stage.holder_with(&Setup { kubeconfig, ..Setup::default() }).await?;
        stage.live(&adapter, 2.5).await?;
        stage.still_holds(&adapter).await.map(drop)
    };
    let renewing = async {
        loop {
            sleep(LIFE).await;
            if let Err(error) = renew().await {
                return error;
            }
        }
    };
    tokio::select! {
        lived = living => lived?,
        error = renewing => return Err(error),
    }
    Ok(Verdict::Passed)
}

/// A service account for a stage with rights to these verbs on leases; a token of it.
async fn account(stage: &Stage<'_>, verbs: &[&str]) -> Result<String> {
    let (world, name) = (&stage.bench.world, &stage.lease);
    let token = token(stage).await?;
    let rules = json!([{"apiGroups": ["lessor.dev"], "resources": ["leases"], "verbs": verbs}]);
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let roles: Api<Role> = Api::namespaced(world.client.clone(), &world.namespace);
    roles.create(&PostParams::default(), &serde_json::from_value(role)?).await.context("a role")?;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": world.namespace}],
    });
    let bindings: Api<RoleBinding> = Api::namespaced(world.client.clone(), &world.namespace);
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await.context("a binding")?;
    let user = format!("system:serviceaccount:{}:{name}", world.namespace);
    world.wait_for_rights(&user, "lessor.dev", "leases", &["create", "get", "watch"]).await;
    Ok(token)
}

async fn token(stage: &Stage<'_>) -> Result<String> {
    let world = &stage.bench.world;
    Ok(world.cluster.service_account_token(&world.namespace, &stage.lease).await?)
}
