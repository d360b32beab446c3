//! Holders, which keep leases alive.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, api::Patch};
use lessor_api::{Lease, lease::ENDED_MESSAGE, time};
use lessor_kit::world::{World, holder};
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

/// How long a holder waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A task that renews leases until it is stopped.
pub(crate) struct Holder {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<Tally>>,
}

/// What came of a holder's renewals.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Accepted.
    pub(crate) accepted: usize,
    /// Refused since the lease had ended, or was gone.
    pub(crate) ended: usize,
    /// Not answered, or with an error of another kind.
    pub(crate) failed: usize,
}

impl Holder {
    /// Renews each of these leases every `every`, spread over that time.
    pub(crate) fn of(world: &World, names: &[String], every: Duration) -> Self {
        let stop = watch::Sender::new(false);
        let mut config = world.cluster.client_config();
        // A holder tries again by itself.
        config.default_retry = false;
        let client = Client::try_from(config).expect("a client");
        let leases: Api<Lease> = Api::namespaced(client, &world.namespace);
        let start = Instant::now();
        let tasks = names.iter().enumerate().map(|(i, name)| {
            let first = start + every.mul_f64(i as f64 / names.len() as f64);
            tokio::spawn(renew(leases.clone(), name.clone(), first, every, stop.subscribe()))
        });
        Self { tasks: tasks.collect(), stop }
    }

    /// Stops, and sums up.
    pub(crate) async fn stop(self) -> Tally {
        self.stop.send_replace(true);
        let mut sum = Tally::default();
        for task in self.tasks {
            let tally = task.await.expect("a holder");
            sum.accepted += tally.accepted;
            sum.ended += tally.ended;
            sum.failed += tally.failed;
        }
        sum
    }
}

async fn renew(
    leases: Api<Lease>,
    name: String,
    first: Instant,
    every: Duration,
    mut stop: watch::Receiver<bool>,
) -> Tally {
    let mut tally = Tally::default();
    let mut next = first;
    loop {
        tokio::select! {
            () = sleep_until(next) => {}
            _ = stop.wait_for(|stop| *stop) => return tally,
        }
        let patch = Patch::Merge(json!({"spec": {"renewTime": time::to_text(Timestamp::now())}}));
        match timeout(PATIENCE, leases.patch(&name, &holder(), &patch)).await {
            Ok(Ok(_)) => tally.accepted += 1,
            Ok(Err(kube::Error::Api(status)))
                if status.message.contains(ENDED_MESSAGE)
                    || (status.code == 404
                        && status.details.as_ref().is_some_and(|d| !d.name.is_empty())) =>
            {
                tally.ended += 1;
            }
            Ok(Err(_)) | Err(_) => tally.failed += 1,
        }
        next = (next + every).max(Instant::now());
    }
}
