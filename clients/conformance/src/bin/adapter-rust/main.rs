//! The adapter of `lessor-client`.

use std::{collections::HashMap, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use lessor_client::{AttachTarget, BootInstant, Error, Grant, HeldLease, KeepAlive, LeaseClient, LossReason};
use lessor_conformance::{
    clock::Moment,
    protocol::{Acquired, Attachment, Belief, ClientError, Command, Group, Subject},
    serve::{self, Client, Output, answer, done},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::locks::Locks;

mod locks;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let namespace = std::env::var("NAMESPACE").context("NAMESPACE is not set")?;
    let holder = std::env::var("HOLDER").unwrap_or_else(|_| "adapter".to_owned());
    let leases = LeaseClient::try_default(namespace).await?.with_field_manager(&holder);
    let output = Output::new();
    let locks = Locks::new(leases.clone(), holder.clone(), output.clone());
    let adapter = Adapter { leases, holder, held: Mutex::default(), locks, output: output.clone() };
    let name = concat!("lessor-client ", env!("CARGO_PKG_VERSION")).to_owned();
    let can = vec![Group::Lease, Group::Attach, Group::Mutex, Group::Election];
    Ok(serve::serve(name, can, Arc::new(adapter), output).await?)
}

struct Adapter {
    leases: LeaseClient,
    holder: String,
    held: Mutex<HashMap<String, Arc<Held>>>,
    locks: Locks,
    output: Output,
}

/// A lease, and whether it's kept alive.
enum Held {
    Granted(Box<HeldLease>),
    Kept(Arc<KeepAlive>, Mutex<Option<Reporter>>),
}

/// Reports a loss, unless it's stopped before.
struct Reporter {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Reporter {
    fn start(
        output: Output,
        subject: Subject,
        lost: impl Future<Output = LossReason> + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            tokio::select! {
                _ = stopped => {}
                reason = lost => output.lost(subject, word(&reason), reason),
            }
        });
        Self { stop, task }
    }

    async fn stop(self) {
        // It may have reported the loss and ended.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl Held {
    fn lease(&self) -> HeldLease {
        match self {
            Self::Granted(lease) => (**lease).clone(),
            Self::Kept(alive, _) => alive.lease(),
        }
    }

    /// Ends renewals and reports.
    async fn stop(self: Arc<Self>) {
        let Self::Kept(_, reporter) = &*self else { return };
        let reporter = reporter.lock().take();
        if let Some(reporter) = reporter {
            reporter.stop().await;
        }
    }
}

impl Client for Adapter {
    async fn run(self: Arc<Self>, command: Command) -> Result<Value, ClientError> {
        match command {
            Command::Grant { lease, ttl } => self.grant(lease, ttl).await,
            Command::KeepAlive { lease } => self.keep_alive(lease),
            Command::Stop { lease, revoke } => self.stop(&lease, revoke).await,
            Command::Attach(attachment) => self.attach(attachment, true).await,
            Command::Detach(attachment) => self.attach(attachment, false).await,
            Command::Status(Subject::Lease(lease)) => self.status(&lease),
            Command::Status(subject) => self.locks.status(&subject),
            Command::Lock { mutex, ttl, wait } => self.locks.lock(mutex, ttl, wait).await,
            Command::TryLock { mutex, ttl } => self.locks.try_lock(mutex, ttl).await,
            Command::Unlock { mutex } => self.locks.release(&Subject::Mutex(mutex)).await,
            Command::Campaign { election, ttl, value, wait } => {
                self.locks.campaign(election, ttl, &value, wait).await
            }
            Command::Leader { election } => self.locks.leader(election).await,
            Command::Resign { election } => self.locks.release(&Subject::Election(election)).await,
        }
    }

    fn has_lost(&self) -> bool {
        let has_lost = |held: &Arc<Held>| matches!(&**held, Held::Kept(alive, _) if !alive.is_alive());
        self.held.lock().values().any(has_lost) || self.locks.has_lost()
    }

    async fn release_all(&self) {
        let held: Vec<_> = self.held.lock().drain().collect();
        let leases = futures::future::join_all(held.iter().map(async |(name, held)| {
            let lease = held.lease();
            Arc::clone(held).stop().await;
            if let Err(error) = lease.revoke().await {
                report(format_args!("{name} can't be revoked: {error}"));
            }
        }));
        futures::join!(leases, self.locks.release_all());
    }
}

impl Adapter {
    async fn grant(&self, lease: String, ttl: u64) -> Result<Value, ClientError> {
        let grant = Grant::new(&lease, Duration::from_secs(ttl)).holder(&self.holder);
        let granted = self.leases.grant(&grant).await.map_err(error)?;
        let acquired = Acquired {
            uid: Some(granted.uid().to_owned()),
            ttl: Some(granted.ttl().as_secs_f64()),
            token: Some(granted.fencing_token()),
            until: Some(moment(granted.deadline())),
            now: Moment::now(),
        };
        self.held.lock().insert(lease, Arc::new(Held::Granted(Box::new(granted))));
        answer(acquired)
    }

    fn keep_alive(&self, name: String) -> Result<Value, ClientError> {
        let mut held = self.held.lock();
        let granted = held.get(&name).map(|held| held.lease()).ok_or_else(not_held)?;
        let alive = Arc::new(granted.keep_alive());
        let (reported, subject) = (Arc::clone(&alive), Subject::Lease(name.clone()));
        let reporter = Reporter::start(self.output.clone(), subject, async move { reported.lost().await });
        held.insert(name, Arc::new(Held::Kept(alive, Mutex::new(Some(reporter)))));
        done()
    }

    async fn stop(&self, name: &str, revoke: bool) -> Result<Value, ClientError> {
        let held = self.held.lock().remove(name).ok_or_else(not_held)?;
        let lease = held.lease();
        held.stop().await;
        if revoke {
            lease.revoke().await.map_err(error)?;
        }
        done()
    }

    async fn attach(&self, attachment: Attachment, attach: bool) -> Result<Value, ClientError> {
        let Attachment { lease, name, keys, .. } = attachment;
        let (target, keys) = (AttachTarget::config_map(name), keys.unwrap_or_default());
        let keys = keys.iter().map(String::as_str);
        match attach {
            true => self.leases.attach(&lease, &target, keys).await.map(drop).map_err(error)?,
            false => self.leases.detach(&lease, &target, keys).await.map(drop).map_err(error)?,
        }
        done()
    }

    fn status(&self, name: &str) -> Result<Value, ClientError> {
        let held = self.held.lock().get(name).cloned().ok_or_else(not_held)?;
        let lease = held.lease();
        let (is_held, until) = match &*held {
            Held::Granted(_) => (!lease.deadline().is_past(), lease.deadline()),
            Held::Kept(alive, _) => (alive.is_alive(), alive.alive_until()),
        };
        let token = Some(lease.fencing_token());
        answer(Belief { held: is_held, until: Some(moment(until)), now: Moment::now(), token })
    }
}

/// This instant on the protocol's clock.
fn moment(instant: BootInstant) -> Moment {
    Moment::now() + instant.remaining()
}

fn report(text: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn not_held() -> ClientError {
    ClientError::new("gone", "this process has no lease of this name")
}

fn error(error: Error) -> ClientError {
    let code = match &error {
        Error::NotFound(_) => "gone",
        Error::NotInstalled => "not-installed",
        Error::Exists(_) => "exists",
        Error::Ended => "ended",
        Error::Replaced => "replaced",
        Error::NotGranted { .. } => "not-granted",
        Error::Unauthorized(_) => "unauthorized",
        Error::Forbidden(_) => "forbidden",
        Error::Invalid(_) => "invalid",
        Error::Conflict(_) => "conflict",
        Error::Throttled(_) => "throttled",
        Error::ServerError(_) | Error::NoResponse(_) => "unreachable",
        Error::Annotation(_) => "other",
    };
    let hint = error.hint().map(|hint| format!("; {hint}"));
    ClientError::new(code, format!("{error}{}", hint.unwrap_or_default()))
}

fn word(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::Ended => "ended",
        LossReason::Revoked => "revoked",
        LossReason::Gone => "gone",
        LossReason::Replaced => "replaced",
        LossReason::MaxLifetime => "max-lifetime",
        LossReason::NotRenewed(_) => "not-renewed",
    }
}
