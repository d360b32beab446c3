//! A controller that observes leases: a ConfigMap says who is there, by the leases that people and programs
//! hold.
//!
//! It asks nothing of the operator. The status of a lease tells its state, and a watch tells when that
//! changes.
//!
//!     cargo run --example observe_leases

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        controller::{Action, Config, Controller},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use lessor_api::{Lease, lease::condition};
use serde_json::json;

const MAP: &str = "who-is-there";
const MANAGER: &str = "observe-leases";

struct Context {
    maps: Api<ConfigMap>,
    leases: Store<Lease>,
}

#[derive(Debug, thiserror::Error)]
#[error("can't write configmap/{MAP}: {0}")]
struct Error(#[from] kube::Error);

#[tokio::main]
#[expect(clippy::print_stderr, reason = "it tells a person what it does")]
async fn main() -> anyhow::Result<()> {
    let client = Client::try_default().await?;
    let namespace = client.default_namespace().to_owned();
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let controller = Controller::new(leases, watcher::Config::default());
    let context = Arc::new(Context { maps: Api::namespaced(client, &namespace), leases: controller.store() });
    controller
        // A lease that is gone has nothing to be reconciled; its end, before that, has.
        .with_config(Config::default().concurrency(1))
        .shutdown_on_signal()
        .run(reconcile, on_error, context)
        .for_each(async |done| match done {
            Ok((ObjectRef { name, .. }, _)) => eprintln!("seen: {name}"),
            Err(error) => eprintln!("{error}"),
        })
        .await;
    Ok(())
}

/// Writes down who is there, after whatever has changed: one write for all leases is as good as one for each.
async fn reconcile(_changed: Arc<Lease>, context: Arc<Context>) -> Result<Action, Error> {
    let present: BTreeMap<String, String> = context
        .leases
        .state()
        .iter()
        .filter(|lease| is_active(lease))
        .map(|lease| (lease.name_any(), lease.spec.holder.clone().unwrap_or_default()))
        .collect();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MAP}, "data": present});
    context.maps.patch(MAP, &PatchParams::apply(MANAGER).force(), &Patch::Apply(map)).await?;
    Ok(Action::await_change())
}

fn on_error(_changed: Arc<Lease>, _error: &Error, _context: Arc<Context>) -> Action {
    Action::requeue(Duration::from_secs(2))
}

/// Whether a lease holds: granted, and not over.
fn is_active(lease: &Lease) -> bool {
    let conditions = lease.status.iter().flat_map(|status| &status.conditions);
    lease.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().any(|found| found.type_ == condition::ACTIVE && found.status == "True")
}
