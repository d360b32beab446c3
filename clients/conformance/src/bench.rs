//! Where scenarios play: a cluster with an operator, and for each client a proxy and a lease of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use lessor_cluster::{
    Process,
    proxy::{Faults, Proxy},
};
use lessor_kit::world::World;
use parking_lot::Mutex;
use tokio::{
    sync::Barrier,
    time::{Instant, sleep},
};

use crate::{
    adapter::Adapter,
    clients::{self, Client},
    history::{self, Kind, Life, Request},
    judge::{self, Case},
    protocol::{Acquired, Belief, Command, Subject},
};

/// How often a client is asked what it believes.
const ASK_EVERY: Duration = Duration::from_millis(150);

/// The longest TTL that the operator grants.
pub const MAX_TTL: Duration = Duration::from_secs(900);

/// What all scenarios share.
#[expect(missing_debug_implementations, reason = "a world has none")]
pub struct Bench {
    /// A namespace with an operator.
    pub world: World,
    /// The operator.
    pub operator: Process,
    /// The TTL of leases.
    pub ttl: Duration,
    /// The program that moves wall clocks, where that's possible.
    pub clockshift: Option<PathBuf>,
    /// Where clients meet before the API server is paused for all of them.
    pub outage: Barrier,
}

impl Bench {
    /// Starts a cluster and an operator, for so many clients.
    pub async fn start(ttl: Duration, clients: usize) -> Result<Self> {
        let world = World::new("conformance").await;
        let operator = world.primary(&["--max-ttl", "900s"]).await;
        let clockshift = clients::clockshift(world.cluster.directory()).await?;
        Ok(Self { world, operator, ttl, clockshift, outage: Barrier::new(clients) })
    }
}

/// How a client reaches the API server.
#[derive(Debug, Default)]
pub struct Setup {
    /// The wall clock can be moved.
    pub movable_clock: bool,
    /// By this kubeconfig instead of an administrator's. It has to go through the proxy.
    pub kubeconfig: Option<PathBuf>,
    /// In this namespace instead of the one with an operator.
    pub namespace: Option<String>,
}

/// One client in one scenario.
#[expect(missing_debug_implementations, reason = "a world has none")]
pub struct Stage<'a> {
    /// What all share.
    pub bench: &'a Bench,
    /// The client under test.
    pub client: &'a Client,
    /// Between the client and the API server.
    pub proxy: Arc<Proxy>,
    /// The name of its lease.
    pub lease: String,
    /// The TTL.
    pub ttl: Duration,
    /// Whether the client can watch its lease all the time.
    watched: AtomicBool,
    /// Whether nothing disturbs its renewals.
    calm: AtomicBool,
    requests: Arc<Mutex<Vec<Request>>>,
    clock: PathBuf,
    /// The client that was granted the lease.
    holder: Mutex<Option<Arc<Adapter>>>,
}

impl<'a> Stage<'a> {
    /// A stage for a client, in the scenario of this name.
    pub async fn new(bench: &'a Bench, client: &'a Client, scenario: &str) -> Result<Self> {
        let proxy = Arc::new(bench.world.cluster.proxy().await?);
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let recorded = Arc::clone(&requests);
        proxy.observe(move |seen| recorded.lock().push(Request::now(seen)));
        let lease = format!("{}-{scenario}", client.name);
        let clock = bench.world.cluster.directory().join(format!("{lease}.clock"));
        fs::write(&clock, 0_i64.to_le_bytes())?;
        let (ttl, watched, calm) = (bench.ttl, AtomicBool::new(true), AtomicBool::new(true));
        let holder = Mutex::default();
        Ok(Self { bench, client, proxy, lease, ttl, watched, calm, requests, clock, holder })
    }

    /// Starts the client.
    pub async fn adapter(&self, setup: &Setup) -> Result<Arc<Adapter>> {
        let mut before = Vec::new();
        if setup.movable_clock {
            let program = self.bench.clockshift.clone().context("the wall clock can't be moved here")?;
            before = vec![program, self.clock.clone()];
        }
        let kubeconfig = setup.kubeconfig.as_deref().unwrap_or(self.proxy.kubeconfig_path());
        let mut command = self.client.command(&before);
        command.env("KUBECONFIG", kubeconfig).env("HOLDER", &self.client.name);
        command.env("NAMESPACE", setup.namespace.as_ref().unwrap_or(&self.bench.world.namespace));
        Adapter::start(command).await.map(Arc::new)
    }

    /// Starts the client with an administrator's rights, and lets it hold a lease.
    pub async fn holder(&self) -> Result<(Arc<Adapter>, Acquired)> {
        self.holder_with(&Setup::default()).await
    }

    /// Starts the client, and lets it hold a lease.
    pub async fn holder_with(&self, setup: &Setup) -> Result<(Arc<Adapter>, Acquired)> {
        let adapter = self.adapter(setup).await?;
        let granted = self.grant(&adapter).await?;
        self.keep_alive(&adapter).await?;
        Ok((adapter, granted))
    }

    /// Has the lease granted.
    pub async fn grant(&self, adapter: &Arc<Adapter>) -> Result<Acquired> {
        self.grant_for(adapter, self.ttl).await
    }

    /// Has the lease granted for another time than others.
    pub async fn grant_for(&self, adapter: &Arc<Adapter>, ttl: Duration) -> Result<Acquired> {
        let command = Command::Grant { lease: self.lease.clone(), ttl: ttl.as_secs() };
        let granted = adapter.done(command).await?;
        *self.holder.lock() = Some(Arc::clone(adapter));
        Ok(granted)
    }

    /// Has it kept alive.
    pub async fn keep_alive(&self, adapter: &Adapter) -> Result<()> {
        self.empty(adapter, Command::KeepAlive { lease: self.lease.clone() }).await
    }

    /// Has it stopped.
    pub async fn stop(&self, adapter: &Adapter, revoke: bool) -> Result<()> {
        self.empty(adapter, Command::Stop { lease: self.lease.clone(), revoke }).await
    }

    async fn empty(&self, adapter: &Adapter, command: Command) -> Result<()> {
        adapter.done::<serde_json::Value>(command).await.map(drop)
    }

    /// The lease, as statuses name it.
    pub fn subject(&self) -> Subject {
        Subject::Lease(self.lease.clone())
    }

    /// Asks for the belief again and again for this share of a TTL.
    pub async fn live(&self, adapter: &Adapter, ttls: f64) -> Result<()> {
        let end = Instant::now() + self.ttl.mul_f64(ttls);
        while Instant::now() < end {
            adapter.belief(&self.subject()).await?;
            sleep(ASK_EVERY).await;
        }
        Ok(())
    }

    /// The requests that the proxy received until now.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }

    /// How many renewals of the lease the client has sent.
    pub fn tries(&self) -> usize {
        let requests = self.requests.lock();
        requests.iter().filter(|request| request.kind == Kind::Renewal && request.lease == self.lease).count()
    }

    /// Waits until the client has sent another renewal, and has its answer.
    pub async fn renewal(&self, adapter: &Adapter) -> Result<()> {
        let before = self.tries();
        let until = Instant::now() + self.ttl;
        while self.tries() == before {
            ensure!(Instant::now() < until, "it sent no renewal for a TTL");
            adapter.belief(&self.subject()).await?;
            sleep(ASK_EVERY / 3).await;
        }
        sleep(ASK_EVERY).await;
        Ok(())
    }

    /// Fails unless the client holds its lease and never reported a loss.
    pub async fn still_holds(&self, adapter: &Adapter) -> Result<Belief> {
        if let Some(lost) = adapter.transcript().lost.first() {
            bail!("it lost the lease, which it could have kept: {} ({})", lost.message, lost.reason);
        }
        let belief = adapter.belief(&self.subject()).await?;
        ensure!(belief.held, "it holds the lease no more, which it could have kept");
        Ok(belief)
    }

    /// Fails if the client believes that it holds its lease.
    pub async fn holds_no_more(&self, adapter: &Adapter) -> Result<()> {
        let belief = adapter.belief(&self.subject()).await?;
        ensure!(!belief.held, "it believes in a lease that is lost");
        Ok(())
    }

    /// Closes the client's input, and fails unless its exit code is this.
    pub async fn exits(&self, adapter: &Adapter, code: i32) -> Result<()> {
        adapter.close();
        let is = adapter.exit_code().await?;
        ensure!(is == code, "exit code {is}, not {code}: {}", adapter.errors());
        Ok(())
    }

    /// The lives of the leases of the client's name.
    pub fn lives(&self) -> Result<Vec<Life>> {
        let audit = self.bench.world.cluster.audit()?;
        Ok(history::lives(audit.with(&self.lease)?, &self.lease))
    }

    /// What the judge finds about the client and its lease, the first of its name, if it was granted one.
    pub fn judge(&self) -> Result<()> {
        let Some(adapter) = self.holder.lock().clone() else { return Ok(()) };
        let lives = self.lives()?;
        let life = lives.first().context("the audit log has no lease of the client")?;
        let requests = self.requests();
        let found = judge::violations(&Case {
            subject: &self.subject(),
            transcript: &adapter.transcript(),
            pauses: &adapter.pauses(),
            requests: &requests,
            life,
            ttl: self.ttl,
            watched: self.watched.load(Ordering::Relaxed),
            calm: self.calm.load(Ordering::Relaxed),
        });
        ensure!(found.is_empty(), "{}", found.join("; "));
        Ok(())
    }

    /// Moves the wall clock of a client that was started with a movable one.
    pub fn move_wall_clock(&self, seconds: i64) -> Result<()> {
        // In place: the program has mapped the file.
        use std::io::Write as _;
        let mut file = fs::File::options().write(true).open(&self.clock)?;
        Ok(file.write_all(&seconds.to_le_bytes())?)
    }

    /// Faults for the client's renewals from now on.
    pub fn fault_renewals(&self, faults: impl FnOnce(Faults) -> Faults) {
        self.disturbed();
        let end = format!("/leases/{}", self.lease);
        let renews = move |seen: &lessor_cluster::proxy::Seen| {
            matches!(seen.method.as_str(), "PATCH" | "PUT") && seen.path.ends_with(&end)
        };
        self.proxy.set_faults([faults(Faults::new(1).only(renews))]);
    }

    /// Cuts the client off, like a network that loses everything.
    pub fn isolate(&self) {
        self.disturbed();
        self.unwatched();
        self.proxy.isolate();
    }

    /// Renewals of the client may fail from now on.
    pub fn disturbed(&self) {
        self.calm.store(false, Ordering::Relaxed);
    }

    /// Watches of the client may fail from now on.
    pub fn unwatched(&self) {
        self.watched.store(false, Ordering::Relaxed);
    }

    /// Refuses the client's watches from now on.
    pub fn refuse_watches(&self) {
        self.unwatched();
        self.proxy.set_faults([Faults::new(1).only(lessor_cluster::proxy::Seen::is_watch).answer(503, 1.0)]);
    }

    /// A kubeconfig for the client that goes through its proxy, with another user.
    pub fn kubeconfig_of(&self, user: serde_json::Value) -> Result<PathBuf> {
        let text = fs::read_to_string(self.proxy.kubeconfig_path())?;
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&text)?;
        kubeconfig["users"][0]["user"] = user;
        let path = self.file("kubeconfig");
        fs::write(&path, kubeconfig.to_string())?;
        Ok(path)
    }

    /// A file for this stage.
    pub fn file(&self, end: &str) -> PathBuf {
        let directory: &Path = self.bench.world.cluster.directory();
        directory.join(format!("{}.{end}", self.lease))
    }

    /// Asks and expects an error with this code; returns the message.
    pub async fn refused(&self, adapter: &Adapter, command: Command, codes: &[&str]) -> Result<String> {
        let what = format!("{command:?}");
        match adapter.ask::<serde_json::Value>(command).await? {
            Ok(ok) => bail!("{what} succeeded: {ok}"),
            Err(error) => {
                ensure!(
                    codes.contains(&&*error.code),
                    "{what}: the code is {}, not {}: {}",
                    error.code,
                    codes.join(" or "),
                    error.message
                );
                Ok(error.message)
            }
        }
    }
}
