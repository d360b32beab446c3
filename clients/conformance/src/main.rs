//! `lessor-conformance`: prints the table of results, and fails if a client does.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::Parser;
use lessor_conformance::{
    bench::Bench,
    clients::{self, Client},
    play::play,
    scenarios::{self, Scenario},
    table::Table,
};
use tokio::time::Instant;

/// Judge clients of Lessor on a real API server with faults
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Adapters of clients of your own: programs that speak the protocol of clients/conformance/PROTOCOL.md
    #[arg(value_name = "ADAPTER")]
    adapters: Vec<PathBuf>,

    /// The project's own clients to judge, if no adapter is given: rust, go, python, kubectl-lease, or simple
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    clients: Vec<String>,

    /// The scenarios to play [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    only: Vec<String>,

    /// The scenarios to leave out
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    skip: Vec<String>,

    /// The TTL of leases, in seconds
    #[arg(long, default_value_t = 8, value_name = "SECONDS")]
    ttl: u64,

    /// Scenarios that are played at once
    #[arg(long, default_value_t = 12, value_name = "COUNT")]
    at_once: usize,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let clients = chosen(&args).await?;
    let scenarios = scenarios(&args)?;
    let started = Instant::now();
    let bench = Bench::start(Duration::from_secs(args.ttl), clients.len()).await?;
    let plays = scenarios.iter().flat_map(|scenario| clients.iter().map(move |client| (scenario, client)));
    let cells = play(&bench, plays.collect(), args.at_once).await;
    let table = Table {
        clients: clients.iter().map(|client| client.name.clone()).collect(),
        rows: scenarios
            .iter()
            .enumerate()
            .map(|(row, scenario)| {
                let cells = &cells[row * clients.len()..][..clients.len()];
                (scenario.name, scenario.about, cells.iter().cloned().map(Some).collect())
            })
            .collect(),
    };
    print(&table.to_string());
    print(&format!("{} scenarios, {:.0} s\n", cells.len(), started.elapsed().as_secs_f64()));
    // The checker of promises reads all that has happened.
    drop(bench);
    Ok(if table.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn chosen(args: &Args) -> Result<Vec<Client>> {
    if !args.adapters.is_empty() {
        return args.adapters.iter().map(|path| Client::at(path)).collect();
    }
    let all = clients::OWN.map(str::to_owned);
    let names: &[String] = if args.clients.is_empty() { &all } else { &args.clients };
    let mut chosen = Vec::new();
    for name in names {
        chosen.push(if name == "simple" { clients::simple(None)? } else { clients::own(name).await? });
    }
    Ok(chosen)
}

fn scenarios(args: &Args) -> Result<Vec<Scenario>> {
    let known = |name: &String| scenarios::ALL.iter().any(|scenario| scenario.name == name);
    if let Some(unknown) = args.only.iter().chain(&args.skip).find(|name| !known(name)) {
        let names: Vec<_> = scenarios::ALL.iter().map(|scenario| scenario.name).collect();
        bail!("no scenario {unknown:?}: there are {}", names.join(", "));
    }
    let is_chosen = |scenario: &&Scenario| {
        let is_in = |names: &[String]| names.iter().any(|name| name == scenario.name);
        (args.only.is_empty() || is_in(&args.only)) && !is_in(&args.skip)
    };
    Ok(scenarios::ALL.iter().filter(is_chosen).copied().collect())
}

fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
