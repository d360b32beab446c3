//! What Lessor costs at scale: three replicas of the release build on a real API server.
//!
//! `cargo bench --bench cluster`, or `just bench-cluster`: requests, lateness, memory, start, takeover, at 1,000, 10,000 and
//! 100,000 leases, in about half an hour. `-- --sizes 1000 --burst 1000` takes minutes. It ends with a table, and writes it to
//! a file with `--json FILE`. With `LESSOR_PROGRAM=PATH` replicas run that program instead of this build's. The exit code is 1 if something costs more requests than it may: all other figures depend on
//! the machine, and on what else it does.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for people, which may fail by panicking"
)]

mod costs;
mod holder;
mod lateness;
mod long;
mod refresh;
mod sizes;
mod table;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use lessor_cluster::{Cluster, audit::Level};
use lessor_kit::{
    bed::{Bed, Replica, primary_of},
    program,
};

use self::table::Table;

/// Measures what Lessor costs at scale.
#[derive(Parser)]
struct Args {
    /// What to measure; may be given several times. Default: all but the long run
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Section>,
    /// How many leases there are, each with one attached object, smallest first
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    sizes: Vec<usize>,
    /// How many leases end in the same second
    #[arg(long, default_value_t = 10_000)]
    burst: usize,
    /// How many renewals a second are sent while others end; a machine that doesn't manage them takes as many as it can
    #[arg(long, default_value_t = 500)]
    renewals: usize,
    /// How many heartbeats a second are sent while others end
    #[arg(long, default_value_t = 500)]
    heartbeats: usize,
    /// How long the long run lasts, in minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Where to write the figures, one JSON object a line
    #[arg(long)]
    json: Option<PathBuf>,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Requests per grant, renewal, expiry, revoke and change of primary
    Costs,
    /// How late leases end: at rest, while others are renewed, all at once
    Lateness,
    /// Writes that renewals cause, and how stale `expiryTime` gets
    Refresh,
    /// Memory, start, processor time at rest and takeover by the number of leases
    Sizes,
    /// Memory over a long time, with leases that come and go
    Long,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let all = [Section::Costs, Section::Lateness, Section::Refresh, Section::Sizes];
    let sections = if args.only.is_empty() { &all[..] } else { &args.only };
    let mut table = Table::default();
    println!("replicas run {}", program::operator().display());
    for section in sections {
        match section {
            Section::Costs => {
                println!("requests, from the audit log");
                let bed = audited().await;
                let mut replicas = three(&bed, &[]).await;
                costs::measure(&bed, &mut replicas, &mut table).await;
            }
            Section::Lateness => {
                println!("lateness");
                lateness::at_rest(&audited().await, &mut table).await;
                lateness::under_renewals(&audited().await, args.renewals, &mut table).await;
                lateness::under_heartbeats(&audited().await, args.heartbeats, &mut table).await;
                lateness::at_once(&audited().await, args.burst, &mut table).await;
            }
            Section::Refresh => {
                println!("what renewals make the operator write");
                refresh::measure(&audited().await, &mut table).await;
            }
            Section::Sizes => {
                println!("by the number of leases");
                sizes::measure(&unaudited().await, &args.sizes, &mut table).await;
            }
            Section::Long => {
                println!("the long run");
                long::measure(&unaudited().await, Duration::from_secs(60 * args.minutes), &mut table).await;
            }
        }
    }
    table.finish(args.json.as_deref()).expect("the file for the figures");
    match table.broken() {
        0 => ExitCode::SUCCESS,
        broken => {
            println!(
                "\nFAILED: {broken} figures don't depend on the machine, and are above what is promised"
            );
            ExitCode::FAILURE
        }
    }
}

/// A cluster that logs each request, and of those about leases and ConfigMaps all that the checker needs.
async fn audited() -> Bed {
    let cluster = Cluster::builder().audit_level("", "configmaps", Level::RequestResponse).start();
    Bed::on(cluster.await.expect("a cluster")).await
}

/// A cluster as it would run elsewhere: the log takes as much time as the requests themselves.
async fn unaudited() -> Bed {
    Bed::on(Cluster::builder().audit(false).start().await.expect("a cluster")).await
}

/// Three replicas, ready, one of them primary.
async fn three(bed: &Bed, args: &[&str]) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(bed.replica(args).await);
    }
    for replica in &replicas {
        replica.ready().await;
    }
    primary_of(&replicas).await;
    replicas
}
