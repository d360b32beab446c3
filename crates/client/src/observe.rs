//! One lease, as it changes.

use std::time::Duration;

use futures::{Stream, StreamExt, future};
use kube::runtime::{WatchStreamExt, watcher};
use lessor_api::Lease;

use super::{LeaseClient, error::Error};

/// How often a lease is read that can't be watched.
const READ_EVERY: Duration = Duration::from_secs(1);

/// How the lease `name` changes from now on; `None` while there is none of this name.
///
/// The first item is how it is now. After a failure it goes on, with growing pauses; without the right to
/// watch it ends.
pub(super) fn changes(
    leases: &LeaseClient,
    name: &str,
) -> impl Stream<Item = Result<Option<Lease>, Error>> + Send + use<> {
    // An empty or absurd name would select everything or nothing; the requests beside the watch say so to
    // whoever asked.
    let mut forbidden = false;
    watcher::watch_object(leases.api(), name)
        .backoff(watcher::DefaultBackoff::default())
        .map(|change| change.map_err(Error::from))
        .take_while(move |change| {
            let goes_on = !forbidden;
            forbidden =
                matches!(change, Err(Error::Forbidden(_) | Error::Unauthorized(_) | Error::NotInstalled));
            future::ready(goes_on)
        })
}

/// Waits until `seen` finds what it looks for. Without the right to watch, it reads once a second.
pub(super) async fn until<T>(
    leases: &LeaseClient,
    name: &str,
    mut seen: impl FnMut(Option<&Lease>) -> Option<T>,
) -> Result<T, Error> {
    let mut changes = std::pin::pin!(changes(leases, name));
    while let Some(change) = changes.next().await {
        match change {
            Ok(lease) => {
                if let Some(found) = seen(lease.as_ref()) {
                    return Ok(found);
                }
            }
            Err(Error::Forbidden(_)) => break,
            Err(error) if !error.is_temporary() => return Err(error),
            Err(_) => {}
        }
    }
    loop {
        match leases.read(name).await {
            Ok(answer) => {
                if let Some(found) = seen(Some(&answer.object)) {
                    return Ok(found);
                }
            }
            Err(Error::NotFound(_)) => {
                if let Some(found) = seen(None) {
                    return Ok(found);
                }
            }
            Err(error) if !error.is_temporary() => return Err(error),
            Err(_) => {}
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}
