//! A client of its own, as simple as a careful one can be. `MUTATION` breaks one thing in it, which shows that the suite finds that.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use futures::{StreamExt, pin_mut};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client as Kube, Config, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{Request, Status},
    runtime::watcher,
};
use lessor_api::{Lease, LeaseSpec, time};
use lessor_conformance::{
    clock::Moment,
    protocol::{Acquired, Belief, ClientError, Command, Group, Subject},
    serve::{self, Client, Output, answer, done, unsupported},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{task::AbortHandle, time::sleep};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The TTL counts from the answer, not from before the request.
    CountsFromTheAnswer,
    /// What was asked for counts, not what was granted.
    CountsWhatItAskedFor,
    /// The deadline is on the wall clock.
    UsesTheWallClock,
    /// Only a failed renewal ends the belief, not the clock.
    BelievesUntilTold,
    /// A request may take for ever.
    WaitsForEver,
    /// The first failure counts as a loss.
    GivesUpAtOnce,
    /// Tries follow one another without a pause.
    Hammers,
    /// 429 is like any other failure.
    IgnoresRetryAfter,
    /// A lease that has ended is renewed again.
    RetriesAfterTheEnd,
    /// Renewals come at a tenth of the TTL.
    RenewsTooOften,
    /// Each renewal has the same time, and so renews nothing.
    RepeatsTheRenewTime,
    /// A renewal names no uid.
    RenewsByName,
    /// A deletion names no uid.
    RevokesByName,
    /// Stop leaves the lease.
    NeverRevokes,
    /// The lease isn't watched.
    DoesNotWatch,
    /// SIGTERM leaves the leases.
    LeavesLeasesAtSigterm,
    /// The exit code is 0 after a loss.
    ExitsAsIfNothingWasLost,
    /// Errors report that something failed, and not what.
    HidesErrors,
    /// Leases that are stopped stay in memory.
    KeepsWhatIsStopped,
}

/// All mutations, by name.
const MUTATIONS: [(&str, Mutation); 19] = [
    ("counts-from-the-answer", Mutation::CountsFromTheAnswer),
    ("counts-what-it-asked-for", Mutation::CountsWhatItAskedFor),
    ("uses-the-wall-clock", Mutation::UsesTheWallClock),
    ("believes-until-told", Mutation::BelievesUntilTold),
    ("waits-for-ever", Mutation::WaitsForEver),
    ("gives-up-at-once", Mutation::GivesUpAtOnce),
    ("hammers", Mutation::Hammers),
    ("ignores-retry-after", Mutation::IgnoresRetryAfter),
    ("retries-after-the-end", Mutation::RetriesAfterTheEnd),
    ("renews-too-often", Mutation::RenewsTooOften),
    ("repeats-the-renew-time", Mutation::RepeatsTheRenewTime),
    ("renews-by-name", Mutation::RenewsByName),
    ("revokes-by-name", Mutation::RevokesByName),
    ("never-revokes", Mutation::NeverRevokes),
    ("does-not-watch", Mutation::DoesNotWatch),
    ("leaves-leases-at-sigterm", Mutation::LeavesLeasesAtSigterm),
    ("exits-as-if-nothing-was-lost", Mutation::ExitsAsIfNothingWasLost),
    ("hides-errors", Mutation::HidesErrors),
    ("keeps-what-is-stopped", Mutation::KeepsWhatIsStopped),
];

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let mutation = match std::env::var("MUTATION") {
        Ok(name) => {
            let known = MUTATIONS.iter().find(|(known, _)| *known == name);
            Some(known.with_context(|| format!("no mutation {name:?}"))?.1)
        }
        Err(_) => None,
    };
    let namespace = std::env::var("NAMESPACE").context("NAMESPACE is not set")?;
    let mut config = Config::infer().await?;
    config.default_retry = false;
    let kube = Kube::try_from(config)?;
    let output = Output::new();
    let simple = Simple {
        requests: Requests { kube, namespace, mutation },
        held: Mutex::default(),
        stopped: Mutex::default(),
        output: output.clone(),
    };
    let name = format!("simple, {mutation:?}");
    Ok(serve::serve(name, vec![Group::Lease], Arc::new(simple), output).await?)
}

struct Simple {
    requests: Requests,
    held: Mutex<HashMap<String, Arc<Held>>>,
    stopped: Mutex<Vec<Vec<u8>>>,
    output: Output,
}

/// A lease that this process was granted.
struct Held {
    uid: String,
    asked_for: Duration,
    token: Option<i64>,
    state: Mutex<State>,
    tasks: Mutex<Vec<AbortHandle>>,
}

#[derive(Clone, Copy)]
struct State {
    ttl: Duration,
    /// Until when the lease counts as held.
    until: Moment,
    /// The same on the wall clock, for a client that trusts that.
    until_by_wall_clock: Duration,
    lost: bool,
}

impl State {
    fn is_held(&self, mutation: Option<Mutation>) -> bool {
        !self.lost
            && match mutation {
                Some(Mutation::UsesTheWallClock) => wall_clock() < self.until_by_wall_clock,
                Some(Mutation::BelievesUntilTold) => true,
                _ => Moment::now() < self.until,
            }
    }
}

impl Client for Simple {
    async fn run(self: Arc<Self>, command: Command) -> Result<Value, ClientError> {
        let mutation = self.requests.mutation;
        let result = match command {
            Command::Grant { lease, ttl } => self.grant(lease, ttl).await,
            Command::KeepAlive { lease } => self.keep_alive(lease),
            Command::Stop { lease, revoke } => self.stop(&lease, revoke).await,
            Command::Status(Subject::Lease(lease)) => self.status(&lease),
            _ => unsupported(),
        };
        result.map_err(|error| match mutation {
            Some(Mutation::HidesErrors) => ClientError::new(&error.code, "failed"),
            _ => error,
        })
    }

    fn has_lost(&self) -> bool {
        let mutation = self.requests.mutation;
        mutation != Some(Mutation::ExitsAsIfNothingWasLost)
            && self.held.lock().values().any(|held| !held.state.lock().is_held(mutation))
    }

    async fn release_all(&self) {
        if self.requests.mutation != Some(Mutation::LeavesLeasesAtSigterm) {
            let names: Vec<String> = self.held.lock().keys().cloned().collect();
            futures::future::join_all(names.iter().map(|name| self.stop(name, true))).await;
        }
    }
}

impl Simple {
    async fn grant(&self, name: String, ttl: u64) -> Result<Value, ClientError> {
        let spec = LeaseSpec { ttl_seconds: i64::try_from(ttl).unwrap_or(i64::MAX), ..LeaseSpec::default() };
        let sent = Moment::now();
        let mut lease = self.requests.create(&Lease::new(&name, spec)).await.map_err(ClientError::from)?;
        let began = Moment::now();
        while lease.status.as_ref().and_then(|status| status.granted_ttl_seconds).is_none() {
            if Moment::now().since(began) > Duration::from_secs(15) {
                let message =
                    format!("lease {name:?} was created, but not granted: is the operator running?");
                return Err(ClientError::new("not-granted", message));
            }
            sleep(Duration::from_millis(200)).await;
            lease = self.requests.read(&name).await.map_err(ClientError::from)?;
        }
        let uid = lease.metadata.uid.clone().unwrap_or_default();
        let token = lease.status.as_ref().and_then(|status| status.fencing_token);
        let asked_for = Duration::from_secs(ttl);
        let state = state_after(&lease, sent, asked_for, self.requests.mutation);
        let acquired = Acquired {
            uid: Some(uid.clone()),
            ttl: Some(state.ttl.as_secs_f64()),
            token,
            until: Some(state.until),
            now: Moment::now(),
        };
        let held = Held { uid, asked_for, token, state: Mutex::new(state), tasks: Mutex::default() };
        self.held.lock().insert(name, Arc::new(held));
        answer(acquired)
    }

    fn held(&self, name: &str) -> Result<Arc<Held>, ClientError> {
        let held = self.held.lock().get(name).cloned();
        held.ok_or_else(|| ClientError::new("gone", format!("this process has no lease {name:?}")))
    }

    fn keep_alive(&self, name: String) -> Result<Value, ClientError> {
        let held = self.held(&name)?;
        let keeper = Keeper {
            requests: self.requests.clone(),
            name,
            held: Arc::clone(&held),
            output: self.output.clone(),
        };
        let task = tokio::spawn(keeper.run());
        held.tasks.lock().push(task.abort_handle());
        done()
    }

    async fn stop(&self, name: &str, revoke: bool) -> Result<Value, ClientError> {
        let held = self.held(name)?;
        self.held.lock().remove(name);
        held.tasks.lock().drain(..).for_each(|task| task.abort());
        if self.requests.mutation == Some(Mutation::KeepsWhatIsStopped) {
            self.stopped.lock().push(vec![1; 1 << 16]);
        }
        if revoke && self.requests.mutation != Some(Mutation::NeverRevokes) {
            match self.requests.delete(name, &held.uid).await {
                Ok(()) => {}
                // It's gone, or another's.
                Err(failure) if [404, 409].contains(&failure.code) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        done()
    }

    fn status(&self, name: &str) -> Result<Value, ClientError> {
        let held = self.held(name)?;
        let (state, now) = (*held.state.lock(), Moment::now());
        let is_held = state.is_held(self.requests.mutation);
        let until = match self.requests.mutation {
            // They don't have such a moment.
            Some(Mutation::UsesTheWallClock | Mutation::BelievesUntilTold) => None,
            _ => Some(state.until),
        };
        answer(Belief { held: is_held, until, now, token: held.token })
    }
}

/// What an answer with this lease means for a client that sent its request then.
fn state_after(lease: &Lease, sent: Moment, asked_for: Duration, mutation: Option<Mutation>) -> State {
    let granted = lease.status.as_ref().and_then(|status| status.granted_ttl_seconds).unwrap_or_default();
    let ttl = match mutation {
        Some(Mutation::CountsWhatItAskedFor) => asked_for,
        _ => Duration::from_secs(u64::try_from(granted).unwrap_or_default()),
    };
    let from = if mutation == Some(Mutation::CountsFromTheAnswer) { Moment::now() } else { sent };
    let usable = ttl - ttl / 10;
    State { ttl, until: from + usable, until_by_wall_clock: wall_clock() + usable, lost: false }
}

#[expect(clippy::disallowed_methods, reason = "the clock that a client may not trust")]
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Keeps one lease alive.
struct Keeper {
    requests: Requests,
    name: String,
    held: Arc<Held>,
    output: Output,
}

impl Keeper {
    async fn run(self) {
        let watching = self.watch();
        pin_mut!(watching);
        let (reason, message) = tokio::select! {
            lost = self.renew() => lost,
            lost = watching => lost,
        };
        self.held.state.lock().lost = true;
        let message = match self.requests.mutation {
            Some(Mutation::HidesErrors) => "lost".to_owned(),
            _ => message,
        };
        self.output.lost(Subject::Lease(self.name.clone()), reason, message);
    }

    /// Renews until that fails.
    async fn renew(&self) -> (&'static str, String) {
        let mutation = self.requests.mutation;
        let mut previous: Option<String> = None;
        let mut failure = "no answer in time".to_owned();
        let mut pause = self.pause();
        loop {
            let (state, began) = (*self.held.state.lock(), Moment::now());
            let left = state.until.since(began);
            sleep(if mutation == Some(Mutation::BelievesUntilTold) { pause } else { pause.min(left) }).await;
            if !state.is_held(mutation) {
                return ("not-renewed", format!("the lease could not be renewed in time: {failure}"));
            }
            let text = match (mutation, &previous) {
                (Some(Mutation::RepeatsTheRenewTime), Some(previous)) => previous.clone(),
                (_, previous) => time::renewal(Timestamp::now(), previous.as_deref()),
            };
            previous = Some(text.clone());
            let sent = Moment::now();
            let patience = match mutation {
                Some(Mutation::WaitsForEver) => Duration::from_secs(3600),
                Some(Mutation::BelievesUntilTold) => Duration::from_secs(2),
                _ => state.until.since(sent).min(state.ttl / 4).max(Duration::from_millis(50)),
            };
            let renewal = self.requests.renew(&self.name, &self.held.uid, &text);
            match tokio::time::timeout(patience, renewal).await {
                Ok(Ok(lease)) => {
                    *self.held.state.lock() = state_after(&lease, sent, self.held.asked_for, mutation);
                    pause = self.pause();
                }
                Ok(Err(Failure { code: code @ (404 | 409 | 422), message, .. }))
                    if mutation != Some(Mutation::RetriesAfterTheEnd) =>
                {
                    let reason = match code {
                        404 => "gone",
                        _ if message.contains("has ended") => "ended",
                        _ => "replaced",
                    };
                    return (reason, message);
                }
                Ok(Err(failed)) => {
                    if mutation == Some(Mutation::GivesUpAtOnce) {
                        return ("not-renewed", failed.message);
                    }
                    pause = match mutation {
                        Some(Mutation::Hammers) => Duration::from_millis(20),
                        Some(Mutation::IgnoresRetryAfter) => state.ttl / 20,
                        _ => failed.retry_after.unwrap_or_default().max(state.ttl / 20),
                    };
                    failure = failed.message;
                }
                Err(_) => pause = state.ttl / 20,
            }
        }
    }

    fn pause(&self) -> Duration {
        let ttl = self.held.state.lock().ttl;
        if self.requests.mutation == Some(Mutation::RenewsTooOften) { ttl / 10 } else { ttl / 3 }
    }

    /// Watches until that shows an end.
    async fn watch(&self) -> (&'static str, String) {
        let blind = [Mutation::DoesNotWatch, Mutation::RetriesAfterTheEnd];
        if self.requests.mutation.is_some_and(|mutation| blind.contains(&mutation)) {
            return std::future::pending().await;
        }
        let versions = watcher::watch_object(self.requests.api(), &self.name);
        pin_mut!(versions);
        while let Some(version) = versions.next().await {
            match version {
                Ok(None) => return ("gone", "the lease is gone: grant a new one".to_owned()),
                Ok(Some(lease)) if lease.metadata.uid.as_deref() != Some(&*self.held.uid) => {
                    return ("replaced", "another lease has this name".to_owned());
                }
                Ok(Some(lease)) if lease.is_ended() || lease.metadata.deletion_timestamp.is_some() => {
                    return ("revoked", "the lease was revoked: grant a new one".to_owned());
                }
                Ok(Some(_)) => {}
                Err(_) => sleep(Duration::from_secs(1)).await,
            }
        }
        std::future::pending().await
    }
}

/// Requests for leases.
#[derive(Clone)]
struct Requests {
    kube: Kube,
    namespace: String,
    mutation: Option<Mutation>,
}

/// Why a request failed.
struct Failure {
    /// The HTTP status; 0 without an answer.
    code: u16,
    message: String,
    exists: bool,
    retry_after: Option<Duration>,
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        let code = match failure.code {
            401 => "unauthorized",
            403 => "forbidden",
            404 => "gone",
            409 if failure.exists => "exists",
            409 => "conflict",
            422 if failure.message.contains("has ended") => "ended",
            400 | 422 => "invalid",
            429 => "throttled",
            0 | 500.. => "unreachable",
            _ => "other",
        };
        Self::new(code, failure.message)
    }
}

impl Requests {
    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.kube.clone(), &self.namespace)
    }

    fn requests(&self) -> Request {
        Request::new(Lease::url_path(&(), Some(&self.namespace)))
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Failure> {
        let body = serde_json::to_vec(lease).unwrap_or_default();
        self.send(self.requests().create(&PostParams::default(), body)).await.and_then(lease_in)
    }

    async fn read(&self, name: &str) -> Result<Lease, Failure> {
        self.send(self.requests().get(name, &Default::default())).await.and_then(lease_in)
    }

    async fn renew(&self, name: &str, uid: &str, text: &str) -> Result<Lease, Failure> {
        let mut patch = json!({"metadata": {"uid": uid}, "spec": {"renewTime": text}});
        if self.mutation == Some(Mutation::RenewsByName) {
            patch["metadata"] = json!({});
        }
        let request = self.requests().patch(name, &PatchParams::default(), &Patch::Merge(patch));
        self.send(request).await.and_then(lease_in)
    }

    async fn delete(&self, name: &str, uid: &str) -> Result<(), Failure> {
        let uid = (self.mutation != Some(Mutation::RevokesByName)).then(|| uid.to_owned());
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        self.send(self.requests().delete(name, &params)).await.map(drop)
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Vec<u8>, Failure> {
        let no_answer = |error: kube::Error| Failure {
            code: 0,
            message: error.to_string(),
            exists: false,
            retry_after: None,
        };
        let request = request.map_err(|error| Failure {
            code: 400,
            message: error.to_string(),
            exists: false,
            retry_after: None,
        })?;
        let response = self.kube.send(request.map(Into::into)).await.map_err(no_answer)?;
        let (code, retry_after) =
            (response.status(), response.headers().get(http::header::RETRY_AFTER).cloned());
        let body = response.into_body().collect_bytes().await.map_err(no_answer)?.to_vec();
        if code.is_success() {
            return Ok(body);
        }
        let status: Status =
            serde_json::from_slice(&body).unwrap_or_else(|_| Status::failure(code.as_str(), ""));
        let retry_after =
            retry_after.and_then(|text| text.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let exists = status.reason == "AlreadyExists";
        Err(Failure { code: code.as_u16(), message: status.message, exists, retry_after })
    }
}

fn lease_in(body: Vec<u8>) -> Result<Lease, Failure> {
    serde_json::from_slice(&body).map_err(|error| Failure {
        code: 0,
        message: error.to_string(),
        exists: false,
        retry_after: None,
    })
}
