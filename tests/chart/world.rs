//! The world of the end-to-end tests, with operators that have no other rights than the chart gives them: every other
//! world has a release that serves all namespaces, the rest one that serves two.

#[allow(dead_code, reason = "what `World` below does in another way")]
#[path = "../e2e/world.rs"]
mod kit;

use std::{
    ops::Deref,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use lessor_cluster::Process;
use serde_json::json;

// `World` below comes before the one in there.
pub(crate) use self::kit::*;
use crate::release::{Release, quick};

/// A test's world.
pub(crate) struct World {
    kit: kit::World,
    account: PathBuf,
}

impl Deref for World {
    type Target = kit::World;

    fn deref(&self) -> &kit::World {
        &self.kit
    }
}

impl World {
    /// A new world with a release of its own.
    pub(crate) async fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let kit = kit::World::new(name).await;
        let serves = match COUNT.fetch_add(1, Ordering::Relaxed) % 2 {
            // With the namespace its roles would go, and nobody could release the leases (see `lifecycle`).
            _ if name == "namespace" => json!([]),
            0 => json!([]),
            _ => json!([kit.namespace, "kube-public"]),
        };
        let values = json!({
            "watchNamespaces": serves, "settings": quick(&kit.lessor), "crds": {"enabled": false},
            // The tests count the operator's requests, and play its enemies.
            "admission": {"finalizer": "operator", "protectStatus": false, "attachments": false},
        });
        let release = Release::install(kit.cluster, &kit.namespace, &kit.namespace, values).await;
        let account = release.pod().await.service_account_name.expect("an account");
        let account = kit.cluster.service_account_kubeconfig(&release.namespace, &account).await;
        Self { account: account.expect("a kubeconfig"), kit }
    }

    /// Starts a replica with the chart's rights.
    pub(crate) fn operator(&self, args: &[&str]) -> Process {
        self.kit.operator_with(&self.account, args)
    }

    /// Starts a replica with the chart's rights and waits until it is primary.
    pub(crate) async fn primary(&self, args: &[&str]) -> Process {
        let operator = self.operator(args);
        self.kit.wait_for_primary(&operator).await;
        operator
    }
}
