//! What happens to clients.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lessor_cluster::proxy::{Faults, Seen};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{
    adapter::Adapter,
    bench::{MAX_TTL, Setup, Stage},
    clock::Moment,
    history::Kind,
    protocol::{Attachment, Command, Group},
};

mod credentials;
mod errors;
mod leak;
mod locks;
mod many;

/// How long a client may take to report a loss that has happened.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a scenario has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is right.
    Passed,
    /// It doesn't apply to this client.
    NotApplicable(String),
}

type Running<'s> = Pin<Box<dyn Future<Output = Result<Verdict>> + 's>>;

/// Beside what else something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Beside anything.
    Beside,
    /// By itself, since it keeps the machine busy.
    Alone,
    /// To all clients at once, after all else.
    Together,
}

/// Something that happens to a client.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// In one word.
    pub name: &'static str,
    /// What happens.
    pub about: &'static str,
    /// Beside what else it may happen.
    pub when: When,
    run: for<'s> fn(&'s Stage<'s>) -> Running<'s>,
}

impl Scenario {
    /// Lets it happen.
    pub fn run<'s>(&self, stage: &'s Stage<'s>) -> Running<'s> {
        (self.run)(stage)
    }
}

macro_rules! scenarios {
    ($($name:literal, $about:literal, $when:ident, $run:path;)*) => {
        /// All scenarios.
        pub const ALL: &[Scenario] = &[$(
            Scenario { name: $name, about: $about, when: When::$when, run: |stage| Box::pin($run(stage)) },
        )*];
    };
}

scenarios! {
    "steady", "nothing breaks", Beside, steady;
    "delays", "requests take 0.3 s, and answers 1.2 s", Beside, delays;
    "lost-answer", "the answer to a renewal never comes, then a renewal itself", Beside, lost_answer;
    "throttled", "429 with Retry-After to renewals", Beside, throttled;
    "unavailable", "503 to renewals", Beside, unavailable;
    "resets", "connections are cut at each renewal", Beside, resets;
    "refused", "renewals are refused (403)", Beside, credentials::refused;
    "revoked", "a user revokes the lease", Beside, revoked;
    "ended", "a user revokes the lease unseen: a renewal meets 422", Beside, ended;
    "replaced", "deleted, and made again under the same name", Beside, replaced;
    "cut-off", "the client is cut off for longer than the TTL", Beside, cut_off;
    "stop-half", "SIGSTOP for half a TTL", Beside, stop_half;
    "stop-one", "SIGSTOP for one TTL", Beside, stop_one;
    "stop-three", "SIGSTOP for three TTLs", Beside, stop_three;
    "wall-clock", "the wall clock is set an hour ahead, and back", Beside, wall_clock;
    "credentials", "exec credentials expire every 3 s", Beside, credentials::expire;
    "sigterm", "SIGTERM with two leases", Beside, sigterm;
    "granted", "the operator grants less than was asked for", Beside, granted;
    "errors", "grants that can't succeed", Beside, errors::errors;
    "not-granted", "no operator grants the lease", Beside, errors::not_granted;
    "mutex", "a mutex is released, its holder ended, killed and cut off", Beside, locks::mutex;
    "election", "leaders resign, one after another", Beside, locks::election;
    "many", "30 leases in one process, with one watch", Beside, many::many;
    "leak", "1,000 leases kept alive and revoked, 100 at a time", Alone, leak::leak;
    "outage", "the API server is away for longer than the TTL", Together, outage;
}

async fn steady(stage: &Stage<'_>) -> Result<Verdict> {
    let (adapter, granted) = stage.holder().await?;
    let world = &stage.bench.world;
    let attaches = adapter.can(Group::Attach);
    let map = format!("{}-endpoints", stage.lease);
    if attaches {
        world.config_map(&map, json!({}), &["one", "two"]).await;
        let keys = Some(vec!["one".to_owned()]);
        let attachment =
            Attachment { lease: stage.lease.clone(), kind: "ConfigMap".into(), name: map.clone(), keys };
        adapter.done::<serde_json::Value>(Command::Attach(attachment)).await?;
    }
    let ttls = 2.5;
    stage.live(&adapter, ttls).await?;
    let belief = stage.still_holds(&adapter).await?;
    let lease = world.leases().get(&stage.lease).await?;
    let token = lease.status.and_then(|status| status.fencing_token);
    ensure!(
        belief.token.is_none() || belief.token == token,
        "the token is {:?}, not {token:?}",
        belief.token
    );
    ensure!(granted.uid.is_none() || granted.uid == lease.metadata.uid, "the uid is {:?}", granted.uid);
    // At a third of the TTL, give or take a tenth of that.
    let (tries, most) = (stage.tries(), (ttls * 3.0 / 0.85) as usize + 2);
    ensure!((4..=most).contains(&tries), "{tries} renewals in {ttls} TTLs, not 4 to {most}");
    stage.stop(&adapter, true).await?;
    let gone = timeout(stage.ttl / 2, world.wait_gone(&stage.lease)).await;
    gone.map_err(|_| anyhow!("stop with revoke left the lease"))?;
    let life = stage.lives()?.first().cloned().context("a life")?;
    ensure!(life.deleted.is_some(), "stop with revoke didn't delete the lease");
    if attaches {
        world.wait_keys(&map, &["two"]).await;
    }
    stage.exits(&adapter, 0).await?;
    Ok(Verdict::Passed)
}

async fn delays(stage: &Stage<'_>) -> Result<Verdict> {
    let (adapter, _) = stage.holder().await?;
    stage.fault_renewals(|faults| {
        faults.delay(Duration::from_millis(300)).delay_answer(Duration::from_millis(1200))
    });
    stage.live(&adapter, 3.0).await?;
    stage.still_holds(&adapter).await?;
    Ok(Verdict::Passed)
}

/// Renewals of the lease of a stage, of which only the first is meant.
fn first_renewal(stage: &Stage<'_>) -> impl Fn(&Seen) -> bool + Send + Sync + use<> {
    let (end, met) = (format!("/leases/{}", stage.lease), AtomicBool::new(false));
    move |seen| {
        matches!(seen.method.as_str(), "PATCH" | "PUT")
            && seen.path.ends_with(&end)
            && !met.swap(true, Ordering::Relaxed)
    }
}

async fn lost_answer(stage: &Stage<'_>) -> Result<Verdict> {
    let (adapter, _) = stage.holder().await?;
    stage.disturbed();
    let answer = stage.proxy.hold_answer(first_renewal(stage));
    stage.live(&adapter, 1.5).await?;
    stage.still_holds(&adapter).await?;
    let request = stage.proxy.hold_request(first_renewal(stage));
    stage.live(&adapter, 1.2).await?;
    request.discard();
    stage.still_holds(&adapter).await?;
    drop(answer);
    Ok(Verdict::Passed)
}

/// Renewals fail from right after one until most of the TTL is over; returns when they came meanwhile.
async fn interrupted(stage: &Stage<'_>, faults: impl FnOnce(Faults) -> Faults) -> Result<Vec<Moment>> {
    let (adapter, _) = stage.holder().await?;
    stage.renewal(&adapter).await?;
    let before = stage.tries();
    stage.fault_renewals(faults);
    stage.live(&adapter, 0.7).await?;
    let requests = stage.requests();
    let tries = requests.iter().filter(|request| request.kind == Kind::Renewal).skip(before);
    let tries = tries.map(|request| request.at).collect();
    stage.proxy.set_faults([]);
    stage.live(&adapter, 1.0).await?;
    stage.still_holds(&adapter).await?;
    Ok(tries)
}

async fn throttled(stage: &Stage<'_>) -> Result<Verdict> {
    let tries = interrupted(stage, |faults| faults.answer(429, 1.0)).await?;
    let hurried = tries.windows(2).find(|pair| pair[1].since(pair[0]) < Duration::from_millis(900));
    if let Some(pair) = hurried {
        let gap = pair[1].since(pair[0]);
        bail!("a try came {gap:.1?} after the one before, which was answered with Retry-After: 1");
    }
    Ok(Verdict::Passed)
}

async fn unavailable(stage: &Stage<'_>) -> Result<Verdict> {
    interrupted(stage, |faults| faults.answer(503, 1.0)).await?;
    Ok(Verdict::Passed)
}

async fn resets(stage: &Stage<'_>) -> Result<Verdict> {
    interrupted(stage, |faults| faults.cut(1.0)).await?;
    Ok(Verdict::Passed)
}

async fn revoked(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = stage.adapter(&Setup::default()).await?;
    // Its renewals are too far apart to show the revocation in time.
    stage.grant_for(&adapter, 4 * stage.ttl).await?;
    stage.keep_alive(&adapter).await?;
    stage.live(&adapter, 0.2).await?;
    stage.bench.world.revoke(&stage.lease).await;
    stage.live(&adapter, 0.6).await?;
    let lost = adapter.lost(&stage.subject(), PATIENCE).await?;
    ensure!(
        ["revoked", "ended", "gone"].contains(&&*lost.reason),
        "the reason is {:?}, not revoked, ended or gone: {}",
        lost.reason,
        lost.message
    );
    stage.holds_no_more(&adapter).await?;
    stage.exits(&adapter, 4).await?;
    Ok(Verdict::Passed)
}

/// What keeps the object of a lease that has ended, so that renewals of it are refused with 422.
const HOLD: &str = "conformance.lessor.dev/hold";

async fn ended(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = stage.adapter(&Setup::default()).await?;
    stage.grant(&adapter).await?;
    stage.refuse_watches();
    stage.keep_alive(&adapter).await?;
    stage.renewal(&adapter).await?;
    set_hold(stage, true).await?;
    stage.bench.world.revoke(&stage.lease).await;
    stage.bench.world.wait_ended(&stage.lease).await;
    let tries = stage.tries();
    stage.live(&adapter, 1.2).await?;
    let after = stage.tries() - tries;
    set_hold(stage, false).await?;
    ensure!(after <= 1, "it tried to renew {} times more after 422 \"lease has ended\"", after - 1);
    let lost = adapter.lost(&stage.subject(), PATIENCE).await?;
    ensure!(
        ["revoked", "ended"].contains(&&*lost.reason),
        "the reason is {:?}, not ended or revoked: {}",
        lost.reason,
        lost.message
    );
    ensure!(
        lost.message.contains("grant a new one"),
        "the message doesn't name the remedy (grant a new one): {}",
        lost.message
    );
    stage.holds_no_more(&adapter).await?;
    stage.exits(&adapter, 4).await?;
    Ok(Verdict::Passed)
}

/// Adds a finalizer to the lease of a stage, or removes it.
async fn set_hold(stage: &Stage<'_>, hold: bool) -> Result<()> {
    use kube::api::{Patch, PatchParams};
    let leases = stage.bench.world.leases();
    // Another writer may change the list meanwhile.
    for _ in 0..20 {
        let Some(lease) = leases.get_opt(&stage.lease).await? else { return Ok(()) };
        let mut finalizers = lease.metadata.finalizers.unwrap_or_default();
        finalizers.retain(|name| name != HOLD);
        if hold {
            finalizers.push(HOLD.to_owned());
        }
        let patch = json!({"metadata": {
            "finalizers": finalizers, "resourceVersion": lease.metadata.resource_version,
        }});
        match leases.patch(&stage.lease, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("the finalizer can't be set")
}

async fn replaced(stage: &Stage<'_>) -> Result<Verdict> {
    let world = &stage.bench.world;
    let adapter = stage.adapter(&Setup::default()).await?;
    stage.grant(&adapter).await?;
    stage.refuse_watches();
    stage.keep_alive(&adapter).await?;
    stage.renewal(&adapter).await?;
    world.revoke(&stage.lease).await;
    world.wait_gone(&stage.lease).await;
    let other = world.granted(&stage.lease, json!({"ttlSeconds": 600, "holder": "another"})).await;
    stage.live(&adapter, 0.8).await?;
    let lost = adapter.lost(&stage.subject(), PATIENCE).await?;
    ensure!(
        ["replaced", "gone", "ended", "revoked"].contains(&&*lost.reason),
        "the reason is {:?}, not replaced: {}",
        lost.reason,
        lost.message
    );
    // A user of the library may stop what is lost.
    stage.stop(&adapter, true).await?;
    sleep(Duration::from_secs(1)).await;
    let now = world.leases().get(&stage.lease).await.context("the other's lease is gone")?;
    ensure!(
        now.metadata.uid == other.metadata.uid && now.metadata.deletion_timestamp.is_none(),
        "it revoked another's lease of the same name"
    );
    ensure!(now.spec.renew_time == other.spec.renew_time, "it renewed another's lease of the same name");
    stage.exits(&adapter, 0).await?;
    Ok(Verdict::Passed)
}

async fn cut_off(stage: &Stage<'_>) -> Result<Verdict> {
    let (adapter, _) = stage.holder().await?;
    stage.renewal(&adapter).await?;
    stage.isolate();
    stage.live(&adapter, 1.2).await?;
    let lost = adapter.lost(&stage.subject(), PATIENCE).await?;
    ensure!(
        lost.reason == "not-renewed",
        "the reason is {:?}, not not-renewed: {}",
        lost.reason,
        lost.message
    );
    stage.proxy.heal();
    let (tries, _) = (stage.tries(), stage.live(&adapter, 0.5).await?);
    // One more may have been on its way, and a second that its library sent anew.
    let more = stage.tries() - tries;
    ensure!(more <= 2, "it sent {more} renewals after the loss");
    stage.holds_no_more(&adapter).await?;
    stage.exits(&adapter, 4).await?;
    Ok(Verdict::Passed)
}

/// Freezes the client right after a renewal for this share of a TTL, and asks it what it believes before it goes on.
async fn frozen(stage: &Stage<'_>, ttls: f64) -> Result<Arc<Adapter>> {
    let (adapter, _) = stage.holder().await?;
    stage.renewal(&adapter).await?;
    stage.disturbed();
    adapter.pause()?;
    sleep(stage.ttl.mul_f64(ttls)).await;
    let subject = stage.subject();
    // In the pipe before the client runs again, so that nothing has happened in it since.
    let first = adapter.belief(&subject);
    let (first, resumed) = tokio::join!(first, async {
        sleep(Duration::from_millis(20)).await;
        adapter.resume()
    });
    resumed?;
    first?;
    stage.live(&adapter, 0.8).await?;
    Ok(adapter)
}

async fn stop_half(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = frozen(stage, 0.5).await?;
    stage.still_holds(&adapter).await?;
    Ok(Verdict::Passed)
}

async fn stop_one(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = frozen(stage, 1.0).await?;
    lost_while_frozen(stage, &adapter).await
}

async fn stop_three(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = frozen(stage, 3.0).await?;
    lost_while_frozen(stage, &adapter).await
}

async fn lost_while_frozen(stage: &Stage<'_>, adapter: &Arc<Adapter>) -> Result<Verdict> {
    adapter.lost(&stage.subject(), PATIENCE).await?;
    stage.holds_no_more(adapter).await?;
    stage.exits(adapter, 4).await?;
    Ok(Verdict::Passed)
}

async fn wall_clock(stage: &Stage<'_>) -> Result<Verdict> {
    if stage.bench.clockshift.is_none() {
        return Ok(Verdict::NotApplicable("needs Linux on x86-64, and a C compiler".to_owned()));
    }
    let (adapter, _) = stage.holder_with(&Setup { movable_clock: true, ..Setup::default() }).await?;
    stage.live(&adapter, 0.4).await?;
    for seconds in [3600, -3600] {
        stage.move_wall_clock(seconds)?;
        stage.live(&adapter, 1.3).await?;
        let hour = if seconds > 0 { "ahead" } else { "back" };
        stage.still_holds(&adapter).await.with_context(|| format!("after the wall clock went {hour}"))?;
    }
    // An hour back is when a client that trusts it would believe for too long.
    stage.isolate();
    stage.live(&adapter, 1.2).await?;
    let lost = adapter.lost(&stage.subject(), PATIENCE).await?;
    ensure!(lost.reason == "not-renewed", "the reason is {:?}, not not-renewed", lost.reason);
    Ok(Verdict::Passed)
}

async fn sigterm(stage: &Stage<'_>) -> Result<Verdict> {
    let (adapter, _) = stage.holder().await?;
    let second = format!("{}-2", stage.lease);
    adapter.done::<serde_json::Value>(Command::Grant { lease: second.clone(), ttl: 600 }).await?;
    adapter.done::<serde_json::Value>(Command::KeepAlive { lease: second.clone() }).await?;
    stage.live(&adapter, 0.2).await?;
    adapter.terminate()?;
    let code = adapter.exit_code().await?;
    ensure!(code == 0, "exit code {code} after SIGTERM, not 0: {}", adapter.errors());
    for name in [&stage.lease, &second] {
        let gone = timeout(stage.ttl / 2, stage.bench.world.wait_gone(name)).await;
        gone.map_err(|_| anyhow!("SIGTERM left the lease {name}"))?;
    }
    Ok(Verdict::Passed)
}

async fn granted(stage: &Stage<'_>) -> Result<Verdict> {
    let adapter = stage.adapter(&Setup::default()).await?;
    let asked = 10 * MAX_TTL.as_secs();
    let granted = stage.grant_for(&adapter, Duration::from_secs(asked)).await?;
    let ttl = granted.ttl.unwrap_or(MAX_TTL.as_secs_f64());
    ensure!(
        (ttl - MAX_TTL.as_secs_f64()).abs() < 0.5,
        "the TTL that was granted is {MAX_TTL:?}, not {ttl} s"
    );
    stage.keep_alive(&adapter).await?;
    stage.live(&adapter, 0.2).await?;
    stage.stop(&adapter, true).await?;
    Ok(Verdict::Passed)
}

async fn outage(stage: &Stage<'_>) -> Result<Verdict> {
    let held = async {
        let (adapter, _) = stage.holder().await?;
        stage.live(&adapter, 0.4).await?;
        anyhow::Ok(adapter)
    };
    let held = held.await;
    stage.disturbed();
    stage.unwatched();
    // Those that failed come here, too, or all would wait for them.
    let first = timeout(Duration::from_secs(90), stage.bench.outage.wait()).await?.is_leader();
    let server = stage.bench.world.cluster.api_server()?;
    if first {
        server.pause()?;
    }
    let lived = match &held {
        Ok(adapter) => stage.live(adapter, 1.5).await,
        Err(_) => {
            sleep(stage.ttl.mul_f64(1.5)).await;
            Ok(())
        }
    };
    if first {
        server.resume()?;
    }
    let adapter = held?;
    lived?;
    let lost = adapter.lost(&stage.subject(), PATIENCE).await?;
    ensure!(lost.reason == "not-renewed", "the reason is {:?}, not not-renewed", lost.reason);
    stage.live(&adapter, 0.3).await?;
    stage.holds_no_more(&adapter).await?;
    stage.exits(&adapter, 4).await?;
    Ok(Verdict::Passed)
}
