//! Holders: tasks that renew leases, or what leases follow, until they are stopped.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use lessor_api::time;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

/// Renews a lease once: one of ours, or one of Kubernetes' own.
pub(crate) async fn renew<K: Clone + Debug + DeserializeOwned>(
    leases: &Api<K>,
    name: &str,
) -> kube::Result<K> {
    let patch = Patch::Merge(json!({"spec": {"renewTime": time::to_text(Timestamp::now())}}));
    leases.patch(name, &PatchParams::default(), &patch).await
}

/// Renews leases, each every so often, spread over that time.
pub(crate) struct Holders {
    tasks: JoinSet<()>,
    sent: tokio::sync::watch::Sender<Tally>,
}

/// What became of renewals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Accepted.
    pub(crate) accepted: usize,
    /// Refused, since the lease is over or gone. What got no answer counts as neither.
    pub(crate) refused: usize,
}

impl Holders {
    /// Starts to renew each of these.
    pub(crate) fn of<K>(leases: &Api<K>, names: Vec<String>, every: Duration) -> Self
    where
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let sent = tokio::sync::watch::Sender::new(Tally::default());
        let mut tasks = JoinSet::new();
        let (start, all) = (Instant::now(), names.len());
        for (number, name) in names.into_iter().enumerate() {
            let (leases, sent) = (leases.clone(), sent.clone());
            let first = start + every.mul_f64(number as f64 / all as f64);
            tasks.spawn(async move {
                let mut ticks = interval_at(first, every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                loop {
                    ticks.tick().await;
                    let answer = renew(&leases, &name).await;
                    sent.send_modify(|tally| match &answer {
                        Ok(_) => tally.accepted += 1,
                        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 422) => {
                            tally.refused += 1
                        }
                        Err(_) => {}
                    });
                }
            });
        }
        Self { tasks, sent }
    }

    /// What became of the renewals until now.
    pub(crate) fn tally(&self) -> Tally {
        *self.sent.borrow()
    }

    /// Stops.
    pub(crate) async fn stop(mut self) -> Tally {
        self.tasks.shutdown().await;
        self.tally()
    }
}
