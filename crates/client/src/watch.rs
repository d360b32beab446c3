//! Watching one lease by its name, also of another holder.

use std::{pin::pin, time::Duration};

use futures::{Stream, StreamExt, future};
use kube::{
    api::WatchParams,
    runtime::{WatchStreamExt, watcher},
};
use lessor_api::Lease;

use super::{client::LeaseClient, error::Error};

/// The interval of reads without the right to watch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The lease `name` now and after each change; `None` while it doesn't exist.
///
/// Retries with growing delays after a failure. Ends if a right is missing.
pub(super) fn changes(
    leases: &LeaseClient,
    name: &str,
) -> impl Stream<Item = Result<Option<Lease>, Error>> + Send + use<> {
    // An invalid name selects everything or nothing here. The caller's other requests report it.
    let mut forbidden = false;
    watcher::watch_object(leases.api(), name)
        .backoff(watcher::DefaultBackoff::default())
        .map(|change| change.map_err(Error::from))
        .take_while(move |change| {
            let continues = !forbidden;
            forbidden =
                matches!(change, Err(Error::Forbidden(_) | Error::Unauthorized(_) | Error::NotInstalled));
            future::ready(continues)
        })
}

impl LeaseClient {
    /// Checks that the API server serves streaming lists, without which the operator doesn't work.
    ///
    /// # Errors
    /// The API server's message, if it refuses them. Other errors are no sign of that, and are ignored.
    pub async fn serves_streaming_lists(&self) -> Result<(), Error> {
        let params = WatchParams::default().initial_events().fields("metadata.name=none").timeout(1);
        match self.api().watch(&params, "").await.map(drop).map_err(Error::from) {
            Err(error @ Error::Invalid(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until a lease is gone. It is deleted after everything attached to it, so this waits for that too, and for
    /// ever if the release is hindered.
    ///
    /// # Errors
    /// Errors that don't pass by themselves: see [`Error::is_temporary`].
    pub async fn wait_gone(&self, name: &str) -> Result<(), Error> {
        let mut changes = pin!(changes(self, name));
        while let Some(change) = changes.next().await {
            match change {
                Ok(None) => return Ok(()),
                Err(Error::Forbidden(_)) => break,
                Err(error) if !error.is_temporary() => return Err(error),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        // Without the right to watch.
        loop {
            match self.read(name).await {
                Err(Error::NotFound(_)) => return Ok(()),
                Err(error) if !error.is_temporary() => return Err(error),
                Ok(_) | Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }
}
