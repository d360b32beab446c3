//! The adapter of `kubectl lease`: a process of the plugin for each lease, whose belief is that it runs.

use std::{collections::HashMap, path::PathBuf, process::ExitCode, process::Stdio, sync::Arc};

use anyhow::Context;
use lessor_conformance::{
    clock::Moment,
    protocol::{Acquired, Attachment, Belief, ClientError, Command, Group, Subject},
    serve::{self, Client, Output, answer, done, unsupported},
};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command as Program},
    sync::watch,
};

/// What the plugin prints when it was granted a lease, or has renewed it.
const HOLDS: [&str; 2] = [" granted for ", " renewed, ttl "];
/// The exit code of a plugin whose lease is lost.
const LOST: i32 = 4;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let this = std::env::current_exe()?;
    let plugin =
        std::env::var_os("KUBECTL_LEASE").map_or_else(|| this.with_file_name("kubectl-lease"), PathBuf::from);
    let namespace = std::env::var("NAMESPACE").context("NAMESPACE is not set")?;
    let holder = std::env::var("HOLDER").unwrap_or_else(|_| "adapter".to_owned());
    let output = Output::new();
    let adapter = Adapter { plugin, namespace, holder, held: Mutex::default(), output: output.clone() };
    let name = concat!("kubectl lease ", env!("CARGO_PKG_VERSION")).to_owned();
    Ok(serve::serve(name, vec![Group::Lease, Group::Attach], Arc::new(adapter), output).await?)
}

struct Adapter {
    plugin: PathBuf,
    namespace: String,
    holder: String,
    held: Mutex<HashMap<String, Arc<Plugin>>>,
    output: Output,
}

/// A process that keeps a lease alive.
struct Plugin {
    pid: Pid,
    /// How it has ended.
    ended: watch::Receiver<Option<Ended>>,
    stopped: Mutex<bool>,
}

#[derive(Clone, Debug)]
struct Ended {
    code: i32,
    errors: String,
}

impl Plugin {
    /// Sends a signal, and waits for the end.
    async fn end(&self, signal: Signal) -> Ended {
        *self.stopped.lock() = true;
        let mut ended = self.ended.clone();
        // The child is reaped by the task that sets this.
        if ended.borrow().is_none() {
            let _ = kill_process(self.pid, signal);
        }
        let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        ended.unwrap_or(Ended { code: 1, errors: "it is lost".to_owned() })
    }
}

impl Client for Adapter {
    async fn run(self: Arc<Self>, command: Command) -> Result<Value, ClientError> {
        match command {
            Command::Grant { lease, ttl } => self.grant(lease, ttl).await,
            Command::KeepAlive { lease } => self.plugin(&lease).and_then(|_| done()),
            Command::Stop { lease, revoke } => self.stop(&lease, revoke).await,
            Command::Attach(attachment) => self.attach("attach", attachment).await,
            Command::Detach(attachment) => self.attach("detach", attachment).await,
            Command::Status(Subject::Lease(lease)) => {
                let plugin = self.plugin(&lease)?;
                let held = plugin.ended.borrow().is_none();
                answer(Belief { held, until: None, now: Moment::now(), token: None })
            }
            _ => unsupported(),
        }
    }

    fn has_lost(&self) -> bool {
        self.held
            .lock()
            .values()
            .any(|plugin| plugin.ended.borrow().as_ref().is_some_and(|ended| ended.code == LOST))
    }

    async fn release_all(&self) {
        // The processes are in the group that got the signal, and revoke their leases.
        let held: Vec<_> = self.held.lock().drain().collect();
        futures::future::join_all(held.iter().map(|(_, plugin)| plugin.end(Signal::TERM))).await;
    }
}

impl Adapter {
    fn program(&self) -> Program {
        let mut program = Program::new(&self.plugin);
        program.args(["--namespace", &self.namespace]).stdin(Stdio::null());
        program
    }

    fn plugin(&self, lease: &str) -> Result<Arc<Plugin>, ClientError> {
        let held = self.held.lock().get(lease).cloned();
        held.ok_or_else(|| ClientError::new("gone", "this process has no lease of this name"))
    }

    /// Grants a lease and keeps it alive, which is one command of the plugin.
    async fn grant(&self, lease: String, ttl: u64) -> Result<Value, ClientError> {
        let mut program = self.program();
        program.args(["grant", &lease, "--ttl", &format!("{ttl}s"), "--holder", &self.holder]);
        program.args(["--keep-alive", "--revoke"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let other = |error: std::io::Error| ClientError::new("other", error);
        let mut child = program.spawn().map_err(other)?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (Some(pid), Some(output)) = (pid, child.stdout.take()) else {
            return Err(ClientError::new("other", "the plugin has no output"));
        };
        let (held, mut is_held) = watch::channel(false);
        tokio::spawn(read(output, held));
        let (ended, has_ended) = watch::channel(None);
        tokio::spawn(wait(child, ended));
        let plugin = Arc::new(Plugin { pid, ended: has_ended.clone(), stopped: Mutex::new(false) });
        // Its output ends with it.
        if is_held.wait_for(|held| *held).await.is_err() {
            let mut failed = has_ended;
            return Err(error(failed.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone())));
        }
        self.held.lock().insert(lease.clone(), Arc::clone(&plugin));
        tokio::spawn(report(plugin, lease, self.output.clone()));
        answer(Acquired { uid: None, ttl: None, token: None, until: None, now: Moment::now() })
    }

    async fn stop(&self, lease: &str, revoke: bool) -> Result<Value, ClientError> {
        let plugin = self.plugin(lease)?;
        self.held.lock().remove(lease);
        // It revokes its lease when it is asked to end.
        let was_lost = plugin.ended.borrow().is_some();
        let ended = plugin.end(if revoke { Signal::TERM } else { Signal::KILL }).await;
        if revoke && !was_lost && ended.code != 0 { Err(error(Some(ended))) } else { done() }
    }

    async fn attach(&self, what: &str, attachment: Attachment) -> Result<Value, ClientError> {
        let Attachment { lease, kind, name, keys } = attachment;
        let keys = keys.map(|keys| format!(":{}", keys.join(","))).unwrap_or_default();
        let target = format!("{}/{name}{keys}", kind.to_lowercase());
        let mut program = self.program();
        let output = program.args([what, &lease, &target]).output().await;
        let output = output.map_err(|error| ClientError::new("other", error))?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code().unwrap_or(1);
        if output.status.success() { done() } else { Err(error(Some(Ended { code, errors }))) }
    }
}

/// Reads what the plugin prints, and publishes when it holds its lease.
async fn read(output: impl AsyncRead + Unpin, held: watch::Sender<bool>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if HOLDS.iter().any(|text| line.contains(text)) {
            held.send_replace(true);
        }
    }
}

/// Waits for the end of a plugin.
async fn wait(mut child: Child, ended: watch::Sender<Option<Ended>>) {
    let mut errors = Vec::new();
    if let Some(output) = child.stderr.take() {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            errors.push(line);
        }
    }
    let code = child.wait().await.ok().and_then(|status| status.code()).unwrap_or(1);
    // Others may be on what it tried before.
    let last = errors.iter().rposition(|line| line.starts_with("error: ")).unwrap_or_default();
    ended.send_replace(Some(Ended { code, errors: errors[last.min(errors.len())..].join("; ") }));
}

/// Reports the loss of a lease when its plugin has ended by itself.
async fn report(plugin: Arc<Plugin>, lease: String, output: Output) {
    let mut has_ended = plugin.ended.clone();
    let ended = has_ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
    let Some(ended) = ended.filter(|_| !*plugin.stopped.lock()) else { return };
    let reasons = [
        ("not-renewed", "could not be renewed in time"),
        ("revoked", "was revoked"),
        ("replaced", "another lease of this name"),
        ("gone", "the lease is gone"),
        ("ended", "has ended"),
        ("max-lifetime", "maximum lifetime"),
    ];
    let reason =
        reasons.iter().find(|(_, text)| ended.errors.contains(text)).map_or("other", |(reason, _)| reason);
    output.lost(Subject::Lease(lease), reason, ended.errors);
}

/// The error of a plugin that has failed, by its exit code.
fn error(ended: Option<Ended>) -> ClientError {
    let Some(Ended { code, errors }) = ended else { return ClientError::new("other", "the plugin is lost") };
    let has = |text: &str| errors.contains(text);
    let code = match code {
        3 if has("not installed") => "not-installed",
        3 => "gone",
        LOST if has("another lease") => "replaced",
        LOST => "ended",
        5 if has("Unauthorized") => "unauthorized",
        5 => "forbidden",
        6 if has("429") => "throttled",
        6 => "unreachable",
        2 => "invalid",
        _ if has("already exists") => "exists",
        _ if has("not granted within") => "not-granted",
        _ if has("is invalid") || has("invalid:") => "invalid",
        _ => "other",
    };
    ClientError::new(code, errors)
}
