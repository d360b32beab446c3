//! What a client keeps of leases that are stopped.

use std::fs;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;
use tokio::time::sleep;

use super::Verdict;
use crate::{
    adapter::Adapter,
    bench::{Setup, Stage},
    protocol::Command,
};

/// Leases at once.
const LEASES: usize = 100;
/// How often.
const ROUNDS: usize = 10;
/// Commands under way at once.
const AT_ONCE: usize = 16;
/// How much memory a client may have more after all rounds than after the second, in MB: allocators keep some.
const MOST_MEMORY: f64 = 8.0;

pub(super) async fn leak(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = stage.adapter(&Setup::default()).await?;
    if stage.client.name == "kubectl-lease" {
        return Ok(Verdict::NotApplicable("a process for each lease".to_owned()));
    }
    let (mut after, adapter) = (Vec::new(), &adapter);
    for round in 0..ROUNDS {
        let name = |number| format!("{}-{round}-{number}", stage.lease);
        let lives = stream::iter(0..LEASES).map(|number| async move {
            let lease = name(number);
            adapter_does(adapter, Command::Grant { lease: lease.clone(), ttl: 60 }).await?;
            adapter_does(adapter, Command::KeepAlive { lease }).await
        });
        lives.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        let stops = stream::iter(0..LEASES)
            .map(|number| adapter_does(adapter, Command::Stop { lease: name(number), revoke: true }));
        stops.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        sleep(stage.ttl / 8).await;
        after.push(Footprint::of(adapter.pid())?);
    }
    let (early, late) = (after[1], after[ROUNDS - 1]);
    ensure!(
        late.memory < early.memory + MOST_MEMORY
            && late.threads <= early.threads + 4
            && late.files <= early.files + 4,
        "after {} leases it has {late:?}, after {} {early:?}",
        ROUNDS * LEASES,
        2 * LEASES
    );
    Ok(Verdict::Passed)
}

async fn adapter_does(adapter: &Adapter, command: Command) -> Result<()> {
    adapter.done::<Value>(command).await.map(drop)
}

/// What a process has of the machine.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    /// In MB.
    memory: f64,
    threads: usize,
    files: usize,
}

impl Footprint {
    fn of(pid: u32) -> Result<Self> {
        let count =
            |what: &str| -> Result<usize> { Ok(fs::read_dir(format!("/proc/{pid}/{what}"))?.count()) };
        Ok(Self { memory: lessor_kit::bed::memory(pid), threads: count("task")?, files: count("fd")? })
    }
}
