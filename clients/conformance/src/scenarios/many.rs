//! Many leases in one process.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;
use tokio::time::sleep;

use super::Verdict;
use crate::{
    bench::{Setup, Stage},
    history::Kind,
    judge::NOTICE,
    protocol::{Command, Subject},
};

const LEASES: usize = 30;
/// Commands under way at once.
const AT_ONCE: usize = 8;
/// The most watches of them all: one, which may be begun anew once or twice.
const MOST_WATCHES: usize = 3;

pub(super) async fn many(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = stage.adapter(&Setup::default()).await?;
    if stage.client.name == "kubectl-lease" {
        return Ok(Verdict::NotApplicable("a process for each lease".to_owned()));
    }
    let name = |number: usize| format!("{}-{number}", stage.lease);
    // Renewals are too far apart to show a revocation in time.
    let (adapter, ttl) = (&adapter, 8 * stage.ttl.as_secs());
    let grants = stream::iter(0..LEASES).map(|number| async move {
        adapter.done::<Value>(Command::Grant { lease: name(number), ttl }).await?;
        adapter.done::<Value>(Command::KeepAlive { lease: name(number) }).await
    });
    grants.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
    // Each watch that is open breaks, and is begun anew.
    stage.proxy.disconnect();
    sleep(Duration::from_millis(500)).await;
    let before = stage.requests().len();
    stage.proxy.heal();
    sleep(stage.ttl / 2).await;
    let requests = stage.requests();
    let watches = requests[before..].iter().filter(|request| request.kind == Kind::Watch).count();
    ensure!(
        (1..=MOST_WATCHES).contains(&watches),
        "{LEASES} leases have {watches} watches, not one for them all"
    );
    stage.bench.world.revoke(&name(7)).await;
    adapter.lost(&Subject::Lease(name(7)), NOTICE).await?;
    for number in (0..LEASES).filter(|number| *number != 7) {
        let belief = adapter.belief(&Subject::Lease(name(number))).await?;
        ensure!(belief.held, "it holds {} no more, which it could have kept", name(number));
    }
    adapter.terminate()?;
    adapter.exit_code().await?;
    Ok(Verdict::Passed)
}
