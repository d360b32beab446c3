//! Workers in several languages contend for one mutex, while replicas, workers, networks and the API server break.

use std::{
    process::{Command as Program, ExitCode},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lessor_api::Lessor;
use lessor_cluster::{
    Process,
    proxy::{Faults, Proxy},
};
use lessor_conformance::{
    adapter::Adapter,
    clients::{self, Client},
    clock::Moment,
    contest::{self, Bounds, Disturbance, End, Holding, Spread},
    protocol::{Acquired, Command, Group, Subject},
};
use lessor_kit::{program, world::World};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

const MUTEX: &str = "contested";
/// How many replicas of the operator there are.
const REPLICAS: usize = 2;
/// The lease duration of replicas: a takeover takes as long.
const TAKEOVER: Duration = Duration::from_secs(5);
/// How often a holder is asked what it believes.
const ASK_EVERY: Duration = Duration::from_millis(40);
/// How long there is peace between two incidents.
const PEACE: Duration = Duration::from_secs(6);

/// Let workers contend for one mutex while everything breaks
#[derive(Parser, Debug)]
struct Args {
    /// The clients of workers, in turn: rust, go, python, or client-go for its leader election
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", default_value = "rust,go,python")]
    clients: Vec<String>,

    /// Workers
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    workers: usize,

    /// How long
    #[arg(long, default_value_t = 10.0, value_name = "MINUTES")]
    minutes: f64,

    /// The TTL of sessions, in seconds
    #[arg(long, default_value_t = 8, value_name = "SECONDS")]
    ttl: u64,

    /// Print what was found, and fail for nothing
    #[arg(long)]
    report_only: bool,
}

/// Guarded by the mutex: takes no token that is smaller than one that it has taken.
#[derive(Debug, Default)]
struct Register {
    greatest: Option<i64>,
    accepted: usize,
    refused: usize,
    /// Accepted from a worker after another had acquired the mutex.
    stale: usize,
}

impl Register {
    fn write(&mut self, token: Option<i64>, is_stale: bool) {
        if token.is_some_and(|token| self.greatest.is_some_and(|greatest| token < greatest)) {
            self.refused += 1;
            return;
        }
        self.accepted += 1;
        self.stale += usize::from(is_stale);
        self.greatest = self.greatest.max(token);
    }
}

#[derive(Debug, Default)]
struct Record {
    holdings: Vec<Holding>,
    register: Register,
    disturbances: Vec<Disturbance>,
    failures: Vec<String>,
}

impl Record {
    /// Writes with the token of this holding, as its worker would.
    fn write(&mut self, index: usize) {
        let this = &self.holdings[index];
        let is_stale =
            self.holdings.iter().any(|other| other.acquired > this.acquired && other.worker != this.worker);
        self.register.write(this.token, is_stale);
    }
}

/// One worker, for whom another process is started when one has ended.
struct Worker {
    name: String,
    client: Client,
    proxy: Proxy,
    namespace: String,
    ttl: u64,
    record: Arc<Mutex<Record>>,
    /// The process that runs now, and the index of what it holds.
    now: Mutex<(Option<Arc<Adapter>>, Option<usize>)>,
}

impl Worker {
    async fn work(&self, until: Instant) {
        let mut failures = 0;
        while Instant::now() < until && failures < 20 {
            if let Err(error) = self.live(until).await {
                // Its process was killed, or its session lost.
                failures += 1;
                let mut record = self.record.lock();
                record.failures.push(format!("{}: {error:#}", self.name));
            }
            *self.now.lock() = (None, None);
            sleep(Duration::from_millis(500)).await;
        }
    }

    async fn live(&self, until: Instant) -> Result<()> {
        let mut command = self.client.command(&[]);
        command.env("KUBECONFIG", self.proxy.kubeconfig_path()).env("HOLDER", &self.name);
        command.env("NAMESPACE", &self.namespace);
        let adapter = Arc::new(Adapter::start(command).await?);
        ensure!(adapter.can(Group::Mutex), "the client has no mutex");
        self.now.lock().0 = Some(Arc::clone(&adapter));
        while Instant::now() < until {
            let command = Command::Lock { mutex: MUTEX.to_owned(), ttl: self.ttl, wait: None };
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_secs(1);
            let Ok(answer) = timeout(left, adapter.send(command)).await else { return Ok(()) };
            let acquired: Acquired = match answer? {
                Ok(answer) => serde_json::from_value(answer).context("the answer to a lock")?,
                // Its session may be lost. It tries again.
                Err(_) => {
                    sleep(Duration::from_millis(200)).await;
                    continue;
                }
            };
            self.hold(&adapter, acquired).await?;
            sleep(Duration::from_millis(fastrand::u64(0..300))).await;
        }
        Ok(())
    }

    async fn hold(&self, adapter: &Adapter, acquired: Acquired) -> Result<()> {
        let index = {
            let mut record = self.record.lock();
            record.holdings.push(Holding {
                worker: self.name.clone(),
                token: acquired.token,
                acquired: acquired.now,
                believed: acquired.now,
                end: None,
            });
            let index = record.holdings.len() - 1;
            record.write(index);
            index
        };
        self.now.lock().1 = Some(index);
        let subject = Subject::Mutex(MUTEX.to_owned());
        let enough = Instant::now() + Duration::from_millis(fastrand::u64(50..400));
        let mut held = true;
        while held && Instant::now() < enough {
            sleep(ASK_EVERY).await;
            let belief = adapter.belief(&subject).await;
            let mut record = self.record.lock();
            match belief {
                Ok(belief) if belief.held => record.holdings[index].believed = belief.now,
                Ok(belief) => {
                    held = false;
                    record.holdings[index].end.get_or_insert((End::Lost, belief.now));
                }
                Err(error) => {
                    record.holdings[index].end.get_or_insert((End::Killed, Moment::now()));
                    return Err(error);
                }
            }
            // The worker has checked its belief, and writes.
            record.write(index);
        }
        let released = adapter
            .ask_within::<Value>(Duration::from_secs(120), Command::Unlock { mutex: MUTEX.to_owned() });
        // A crash from here on may come after the release.
        self.now.lock().1 = None;
        let released = released.await;
        let mut record = self.record.lock();
        let end = if held && matches!(released, Ok(Ok(_))) { End::Released } else { End::Lost };
        record.holdings[index].end.get_or_insert((end, Moment::now()));
        released.map(drop)
    }

    /// The process that runs now, if it holds the mutex: with the index of that.
    fn holding(&self) -> Option<(Arc<Adapter>, usize)> {
        let now = self.now.lock();
        Some((now.0.clone()?, now.1?))
    }
}

struct Contest {
    world: World,
    replicas: Vec<Process>,
    workers: Vec<Arc<Worker>>,
    record: Arc<Mutex<Record>>,
    ttl: Duration,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut kinds = Vec::new();
    for name in &args.clients {
        kinds.push(clients::own(name).await?);
    }
    let world = World::new("contest").await;
    let replicas = (0..REPLICAS).map(|number| replica(&world, number)).collect();
    let record: Arc<Mutex<Record>> = Arc::default();
    let mut workers = Vec::new();
    for (number, client) in (0..args.workers).zip(kinds.iter().cycle()) {
        workers.push(Arc::new(Worker {
            name: format!("{}-{number}", client.name),
            client: client.clone(),
            proxy: world.cluster.proxy().await?,
            namespace: world.namespace.clone(),
            ttl: args.ttl,
            record: Arc::clone(&record),
            now: Mutex::default(),
        }));
    }
    let ttl = Duration::from_secs(args.ttl);
    let mut contest = Contest { world, replicas, workers, record, ttl };
    sleep(TAKEOVER).await;
    let until = Instant::now() + Duration::from_secs_f64(60.0 * args.minutes);
    let working: Vec<_> = contest
        .workers
        .iter()
        .cloned()
        .map(|worker| tokio::spawn(async move { worker.work(until).await }))
        .collect();
    let mut incidents = 0;
    while Instant::now() + PEACE + 3 * ttl < until {
        sleep(PEACE).await;
        contest.break_something(incidents).await?;
        incidents += 1;
    }
    contest.heal();
    for worker in working {
        worker.await?;
    }
    let record = std::mem::take(&mut *contest.record.lock());
    let bounds = Bounds { release: Duration::from_secs(1), crash: ttl + Duration::from_secs(1) };
    let report = contest::judge(record.holdings.clone(), &record.disturbances, bounds);
    let register = &record.register;
    let mut failed = report.violations.clone();
    if register.stale > 0 {
        failed.push(format!(
            "the register accepted {} writes of workers that were holders no more",
            register.stale
        ));
    }
    for name in args
        .clients
        .iter()
        .filter(|name| !record.holdings.iter().any(|held| held.worker.starts_with(&***name)))
    {
        failed.push(format!(
            "{name} never acquired the mutex: {:?}",
            record.failures.iter().find(|failure| failure.starts_with(&**name))
        ));
    }
    print(&format!(
        "{} workers ({}), {} minutes, {incidents} incidents, TTL {} s\n\
         acquired:                    {} times ({})\n\
         two believed at once:        {} times\n\
         hand-over after a release:   {} (median, 99 %, at most)\n\
         hand-over after a crash:     {} (median, 99 %, at most)\n\
         hand-over beside incidents:  {} (median, 99 %, at most)\n\
         writes to the register:      {} accepted, {} refused for their token, {} stale ones accepted\n",
        args.workers,
        args.clients.join(", "),
        args.minutes,
        args.ttl,
        report.holdings,
        shares(&args.clients, &record.holdings),
        report.overlaps,
        Spread::of(&report.after_release),
        Spread::of(&report.after_crash),
        Spread::of(&report.disturbed),
        register.accepted,
        register.refused,
        register.stale,
    ));
    for failure in &failed {
        print(&format!("VIOLATION: {failure}\n"));
    }
    if std::env::var_os("SHOW_FAILURES").is_some() {
        print(&format!("{}\n", record.failures.join("\n")));
    }
    drop(contest);
    Ok(if failed.is_empty() || args.report_only { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How often each client acquired the mutex.
fn shares(clients: &[String], holdings: &[Holding]) -> String {
    let count = |name: &String| {
        holdings
            .iter()
            .filter(|held| held.worker.rsplit_once('-').is_some_and(|(client, _)| client == name))
            .count()
    };
    clients.iter().map(|name| format!("{name} {}", count(name))).collect::<Vec<_>>().join(", ")
}

/// Starts a replica of the operator.
fn replica(world: &World, number: usize) -> Process {
    let mut command = Program::new(program::operator());
    command.args(["run", "--namespace", &world.namespace, "--lessor", &world.lessor]);
    command.args([
        "--identity",
        &identity(number),
        "--min-ttl",
        "1s",
        "--start-grace",
        "1s",
        "--linger",
        "500ms",
    ]);
    command.arg("--kubeconfig").arg(world.cluster.kubeconfig_path()).env("RUST_LOG", "info");
    world.spawn(&command, &format!("operator-{}", world.namespace))
}

fn identity(number: usize) -> String {
    format!("replica-{number}")
}

impl Contest {
    /// Lets one thing break, waits until it is over, and records when.
    async fn break_something(&mut self, number: usize) -> Result<()> {
        let start = Moment::now();
        // What follows from most incidents is over after this.
        let after = match number % 7 {
            // Alone, so that the hand-over is measured.
            0 | 4 => {
                if let Some((adapter, index)) = self.holder().await {
                    let killed = Moment::now();
                    adapter.kill()?;
                    self.record.lock().holdings[index].end.get_or_insert((End::Killed, killed));
                }
                sleep(self.ttl + Duration::from_secs(2)).await;
                return Ok(());
            }
            1 => {
                let primary = self.primary().await.unwrap_or_default();
                self.replicas[primary].kill().await?;
                sleep(Duration::from_secs(2)).await;
                self.replicas[primary] = replica(&self.world, primary);
                TAKEOVER + self.ttl
            }
            2 => {
                if let Some((adapter, index)) = self.holder().await {
                    adapter.pause()?;
                    sleep(self.ttl * 3 / 2).await;
                    // What the worker does first is a write: it checked its belief before it was frozen.
                    self.record.lock().write(index);
                    adapter.resume()?;
                }
                Duration::from_secs(1)
            }
            3 => {
                if let Some(worker) = self.holding_worker().await {
                    worker.proxy.isolate();
                    sleep(self.ttl * 3 / 2).await;
                    worker.proxy.heal();
                }
                self.ttl
            }
            5 => {
                for (seed, worker) in (number as u64..).zip(&self.workers).step_by(2) {
                    worker.proxy.set_faults([Faults::bad_day(seed)]);
                }
                sleep(Duration::from_secs(8)).await;
                self.heal();
                self.ttl
            }
            _ => {
                let server = self.world.cluster.api_server()?;
                server.kill().await?;
                sleep(Duration::from_secs(2)).await;
                server.restart().await?;
                self.world.cluster.wait_ready().await?;
                2 * self.ttl
            }
        };
        let end = Moment::now() + after;
        self.record.lock().disturbances.push(Disturbance { start, end });
        sleep(after).await;
        Ok(())
    }

    fn heal(&self) {
        for worker in &self.workers {
            worker.proxy.heal();
            worker.proxy.set_faults([]);
        }
    }

    async fn holding_worker(&self) -> Option<Arc<Worker>> {
        for _ in 0..200 {
            if let Some(worker) = self.workers.iter().find(|worker| worker.holding().is_some()) {
                return Some(Arc::clone(worker));
            }
            sleep(Duration::from_millis(20)).await;
        }
        None
    }

    async fn holder(&self) -> Option<(Arc<Adapter>, usize)> {
        self.holding_worker().await?.holding()
    }

    /// The number of the primary.
    async fn primary(&self) -> Option<usize> {
        let lessors: kube::Api<Lessor> = kube::Api::all(self.world.client.clone());
        let primary = lessors.get(&self.world.lessor).await.ok()?.status?.primary?;
        (0..REPLICAS).find(|number| primary.contains(&identity(*number)))
    }
}

fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
