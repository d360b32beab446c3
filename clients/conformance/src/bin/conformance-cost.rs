//! What it costs a client to keep many leases alive in one process: memory, processor time, requests and watches.

use std::{collections::BTreeSet, fs, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use lessor_conformance::{
    adapter::Adapter,
    clients,
    history::{Kind, Request},
    protocol::{Belief, Command, Subject},
};
use lessor_kit::{bed, world::World};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// Commands under way at once.
const AT_ONCE: usize = 16;
/// The most processes of a client that has one for each lease.
const MOST_PROCESSES: usize = 20;

/// Measure what it costs clients to keep many leases alive in one process
#[derive(Parser, Debug)]
struct Args {
    /// The clients
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,…",
        default_value = "rust,go,python,kubectl-lease"
    )]
    clients: Vec<String>,

    /// Leases
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    leases: usize,

    /// How long to measure
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,

    /// The TTL of leases, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    ttl: u64,
}

/// What a client has used.
struct Cost {
    leases: usize,
    /// In MB: before the first lease, and with all of them.
    memory: (f64, f64),
    /// For each second that passed.
    processor: f64,
    renewals: f64,
    other: f64,
    /// Opened in all, from the start to the end of the measure.
    watches: usize,
    lost: usize,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let world = World::new("cost").await;
    let operator = world.primary(&[]).await;
    print(&format!(
        "TTL {} s, {} s\n\n\
         | client | leases | memory at first | with the leases | for each lease | processor | renewals | other requests | watches | lost |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        args.ttl, args.seconds
    ));
    for name in &args.clients {
        let cost = measure(&world, name, &args).await.with_context(|| name.clone())?;
        let (first, then) = cost.memory;
        print(&format!(
            "| {name} | {} | {first:.0} MB | {then:.0} MB | {:.0} kB | {:.1} % | {:.1}/s | {:.1}/s | {} | {} |\n",
            cost.leases,
            (then - first) * 1024.0 / cost.leases as f64,
            cost.processor * 100.0,
            cost.renewals,
            cost.other,
            cost.watches,
            cost.lost,
        ));
    }
    drop(operator);
    Ok(ExitCode::SUCCESS)
}

async fn measure(world: &World, name: &str, args: &Args) -> Result<Cost> {
    let client = clients::own(name).await?;
    let leases = if name == "kubectl-lease" { args.leases.min(MOST_PROCESSES) } else { args.leases };
    let proxy = world.cluster.proxy().await?;
    let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
    let recorded = Arc::clone(&requests);
    proxy.observe(move |seen| recorded.lock().push(Request::now(seen)));
    let mut command = client.command(&[]);
    command.env("KUBECONFIG", proxy.kubeconfig_path()).env("HOLDER", name).env("NAMESPACE", &world.namespace);
    let adapter = Adapter::start(command).await?;
    sleep(Duration::from_secs(1)).await;
    let before = memory(adapter.pid())?;
    let lease = |number: usize| format!("{name}-{number}");
    let adapter = &adapter;
    let grants = stream::iter(0..leases).map(|number| async move {
        let ttl = args.ttl;
        adapter.done::<Value>(Command::Grant { lease: lease(number), ttl }).await?;
        adapter.done::<Value>(Command::KeepAlive { lease: lease(number) }).await
    });
    grants.buffer_unordered(AT_ONCE).try_collect::<Vec<Value>>().await?;
    // The first renewals of all are behind.
    sleep(Duration::from_secs(args.ttl / 2)).await;
    let (began, used, sent) = (Instant::now(), processor_time(adapter.pid())?, requests.lock().len());
    sleep(Duration::from_secs(args.seconds)).await;
    let seconds = began.elapsed().as_secs_f64();
    let processor = (processor_time(adapter.pid())? - used).as_secs_f64() / seconds;
    let after = memory(adapter.pid())?;
    let mut lost = 0;
    for number in 0..leases {
        let belief: Belief = adapter.done(Command::Status(Subject::Lease(lease(number)))).await?;
        lost += usize::from(!belief.held);
    }
    let requests = requests.lock().clone();
    let during = &requests[sent..];
    let of = |kind| during.iter().filter(|request| request.kind == kind).count() as f64 / seconds;
    let watches = requests.iter().filter(|request| request.kind == Kind::Watch).count();
    let all = during.len() as f64 / seconds;
    let stops = stream::iter(0..leases)
        .map(|number| adapter.done::<Value>(Command::Stop { lease: lease(number), revoke: true }));
    // All has been measured. What can't be stopped expires.
    stops.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    Ok(Cost {
        leases,
        memory: (before, after),
        processor,
        renewals: of(Kind::Renewal),
        other: all - of(Kind::Renewal),
        watches,
        lost,
    })
}

/// The processes of a group, whose leader has this id.
fn group(leader: u32) -> Result<BTreeSet<u32>> {
    let mut processes = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // It may have ended meanwhile.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let group = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(2)?.parse().ok());
        if group == Some(leader) {
            processes.insert(pid);
        }
    }
    ensure!(!processes.is_empty(), "the client has ended");
    Ok(processes)
}

fn memory(leader: u32) -> Result<f64> {
    Ok(group(leader)?.into_iter().map(bed::memory).sum())
}

fn processor_time(leader: u32) -> Result<Duration> {
    Ok(group(leader)?.into_iter().map(bed::processor_time).sum())
}

fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
