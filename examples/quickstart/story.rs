//! Three stories that happen at once: a service that dies, two sessions that end, and a preview that is closed.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt, api::DeleteParams};
use lessor_api::{
    Attachments, KeyForm, Lease,
    lease::{ENDED_MESSAGE, condition, reason},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    checks::{Checks, is},
    holder::Holder,
    manifests::{self, Manifest},
    observer::{Observer, Seen, SeenLease, Span, active_reason, condition_is_true},
    stage::Stage,
    timeline::{Timeline, What},
};

/// How late anything may be. The real figures are far below; machines are noisy.
const TOLERANCE: Duration = Duration::from_secs(5);
/// How often the service renews its lease: several times within the TTL of 10 s, so that one that fails does no harm.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// How often it does so before it dies.
const RENEWALS: u32 = 5;
/// When the pull request is closed.
const CLOSED_AFTER: Duration = Duration::from_secs(5);

/// Tells the story, and answers what came of its claims.
pub(crate) async fn tell(stage: &Stage, timeline: &Timeline) -> anyhow::Result<Checks> {
    let story = Story {
        stage,
        timeline,
        checks: Checks::new(timeline),
        observer: Observer::new(timeline),
        leases: stage.leases(),
        maps: stage.maps(),
    };
    // However the story ends, so does what is told of it.
    let mut watching = JoinSet::new();
    watching.spawn(story.observer.watch(stage.leases(), stage.maps()));
    timeline.begin();
    story.apply(manifests::SERVICE, &["web-1"]).await?;
    story.apply(manifests::SESSIONS, &["session-alice", "session-bob"]).await?;
    story.apply(manifests::PREVIEW, &["preview-42"]).await?;
    story.all_are_granted().await;
    let told = tokio::try_join!(story.service(), story.sessions(), story.preview());
    drop(watching);
    timeline.footer(Vec::new());
    told?;
    story.sum_up();
    Ok(story.checks)
}

struct Story<'a> {
    stage: &'a Stage,
    timeline: &'a Timeline,
    checks: Checks,
    observer: Observer,
    leases: Api<Lease>,
    maps: Api<ConfigMap>,
}

impl Story<'_> {
    async fn apply(&self, manifest: Manifest, leases: &[&str]) -> anyhow::Result<()> {
        let asked = Instant::now();
        for lease in leases {
            self.observer.note(lease, |seen| seen.asked = Some(asked));
        }
        self.timeline.event(What::Applied, manifest.name, manifest.about);
        manifest.apply(&self.stage.client, &self.stage.namespace).await
    }

    async fn all_are_granted(&self) {
        let names = ["web-1", "session-alice", "session-bob", "preview-42"];
        let granted = |seen: &Seen| names.iter().all(|name| seen.lease(name).renewed.is_some());
        self.observer.wait(Instant::now() + TOLERANCE, granted).await;
        let mut seen = Ok(());
        for name in names {
            let lease = self.lease(name).await.and_then(|lease| {
                is_granted(&lease)?;
                is(&lease.has_finalizer(), &true).map_err(|_| "no finalizer".to_owned())
            });
            seen = seen.and(lease.map_err(|seen| format!("{name}: {seen}")));
        }
        self.checks.check("all four are Granted, and can't vanish before what is attached to them", seen);
    }

    /// A service registers itself, renews its lease for a while, and dies. Its entry goes.
    async fn service(&self) -> anyhow::Result<()> {
        let (name, entry) = ("web-1", "endpoint-web-1");
        let Some(granted) = self.granted_at(name) else { return Ok(()) };
        let mut holder = Holder::new(name, self.leases.clone(), &self.observer);
        for number in 1..=RENEWALS {
            sleep_until(granted + RENEW_EVERY * number).await;
            let left = self.left(name);
            if let Err(error) = holder.renew().await {
                self.checks.check(format!("{name} can be renewed while it lives"), Err(error.to_string()));
                return Ok(());
            }
            let detail = format!("by its holder, with {:.1} s left", left.as_secs_f64());
            self.timeline.event(What::Renewed, name, &detail);
        }
        let age = granted.elapsed().as_secs_f64();
        let alive = self.lease(name).await.and_then(|lease| is_granted(&lease));
        let alive = alive.and(self.map(entry).await.map(drop));
        self.checks
            .check(format!("after {age:.0} s, with a TTL of 10 s, {name} and its ConfigMap live"), alive);
        self.timeline.event(What::Stopped, name, "its holder dies, and renews no more");

        self.ends(name, reason::EXPIRED).await;
        self.removed(entry).await;
        self.released(name).await;
        Ok(())
    }

    /// Two sessions share a ConfigMap. Each takes its own keys with it, and nothing else.
    async fn sessions(&self) -> anyhow::Result<()> {
        let map = "sessions";
        let uid = self.map(map).await.ok().and_then(|map| map.uid());

        self.ends("session-alice", reason::EXPIRED).await;
        self.too_late("session-alice").await;
        self.key_removed(map, "alice").await;
        self.has_keys(map, &[".bob.token", "bob", "motd"]).await;
        self.released("session-alice").await;

        let by = self.observer.seen().lease("session-bob").deadline().unwrap_or_else(Instant::now);
        self.observer.wait(by, |seen| seen.lease("session-bob").expiring.is_some()).await;
        let warned = self.lease("session-bob").await.and_then(|lease| {
            let status = lease.status.unwrap_or_default();
            is(&condition_is_true(&status, condition::EXPIRING), &true)
                .map_err(|_| "condition Expiring isn't True".to_owned())
        });
        let warned = warned.and(self.has_event("session-bob", "Expiring").await);
        self.checks.check("the condition Expiring and an Event say so", warned);

        self.ends("session-bob", reason::EXPIRED).await;
        self.key_removed(map, "bob").await;
        self.key_removed(map, ".bob.token").await;
        self.has_keys(map, &["motd"]).await;
        let same = self.map(map).await.and_then(|map| is(&map.uid(), &uid));
        self.checks.check(format!("{map} itself was never deleted: its uid is the same"), same);
        self.released("session-bob").await;
        Ok(())
    }

    /// The pull request is closed: its environment goes at once, though it had three days left.
    async fn preview(&self) -> anyhow::Result<()> {
        let name = "preview-42";
        let Some(granted) = self.granted_at(name) else { return Ok(()) };
        sleep_until(granted + CLOSED_AFTER).await;
        self.timeline.event(What::Deleted, name, "the pull request is closed: kubectl delete tl preview-42");
        let earliest = Instant::now();
        self.leases.delete(name, &DeleteParams::default()).await?;
        let latest = Instant::now();
        self.observer.note(name, |seen| seen.deleted = Some(Span { earliest, latest }));
        self.ends(name, reason::REVOKED).await;
        self.removed("preview-42-flags").await;
        self.removed("preview-42-settings").await;
        self.released(name).await;
        Ok(())
    }

    /// Waits for the end of a lease: not before its deadline, and not long after.
    async fn ends(&self, name: &str, because: &str) {
        let due = |seen: &SeenLease| match seen.deleted {
            Some(deleted) => Some(deleted.latest),
            None => seen.deadline(),
        };
        let by = due(&self.observer.seen().lease(name)).unwrap_or_else(Instant::now) + TOLERANCE;
        self.observer.wait(by, |seen| seen.lease(name).ended.is_some()).await;
        let seen = self.observer.seen().lease(name);
        let Some((at, _)) = seen.ended else {
            let status = self.lease(name).await.map(|lease| serde_json::json!(lease.status).to_string());
            let seen = status.map_or_else(|error| error, |status| format!("its status is still {status}"));
            let claim = format!("{name} ends within {} s after it is due", TOLERANCE.as_secs());
            self.checks.check(claim, Err(seen));
            return;
        };
        // It is still there, for those who ask: an ended lease lingers for 2 s.
        let ended = self.lease(name).await.and_then(|lease| {
            is(&lease.is_ended(), &true).map_err(|_| "no status.endTime".to_owned())?;
            is(&state(&lease).as_deref(), &Some(because))
        });
        if seen.deleted.is_some() {
            self.checks.check(format!("its status says {because}"), ended);
            return;
        }
        let early = seen.earliest_deadline().and_then(|deadline| deadline.checked_duration_since(at));
        let early = early.filter(|early| !early.is_zero());
        let early = early.map_or(Ok(()), |early| Err(format!("it ended {} ms early", early.as_millis())));
        self.checks
            .check(format!("its status says {because}, and not before its deadline"), ended.and(early));
    }

    /// A renewal after the end is refused by the API server itself.
    async fn too_late(&self, name: &str) {
        let mut holder = Holder::new(name, self.leases.clone(), &self.observer);
        let refused = match holder.renew().await {
            Ok(()) => Err("it was accepted".to_owned()),
            Err(error) if error.to_string().contains(ENDED_MESSAGE) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        if refused.is_ok() {
            self.timeline.event(
                What::Refused,
                name,
                &format!("a renewal that comes too late: \"{ENDED_MESSAGE}\""),
            );
        }
        self.checks.check("the API server refuses renewals once the lease has ended", refused);
    }

    /// Waits until a ConfigMap is gone, with the lease that it was attached to.
    async fn removed(&self, map: &str) {
        let item = (map.to_owned(), None);
        self.observer.wait(Instant::now() + TOLERANCE, |seen| seen.removed.contains_key(&item)).await;
        let gone = self.maps.get_opt(map).await.map_err(|error| error.to_string());
        let gone = gone.and_then(|map| is(&map.is_none(), &true).map_err(|_| "it is still there".to_owned()));
        self.checks.check(format!("ConfigMap {map} is gone"), gone);
    }

    /// Waits until a key of a ConfigMap is gone. [`Story::has_keys`] asks the API server.
    async fn key_removed(&self, map: &str, key: &str) {
        let item = (map.to_owned(), Some(key.to_owned()));
        self.observer.wait(Instant::now() + TOLERANCE, |seen| seen.removed.contains_key(&item)).await;
    }

    /// A ConfigMap has these keys, and no attachments but of these.
    async fn has_keys(&self, map: &str, keys: &[&str]) {
        let seen = self.map(map).await.and_then(|map| {
            let found: Vec<&str> = map.data.iter().flatten().map(|(key, _)| key.as_str()).collect();
            is(&found.as_slice(), &keys)?;
            let attached = Attachments::parse(map.annotations(), KeyForm::Data).keys;
            match attached.keys().find(|key| !keys.contains(&key.as_str())) {
                Some(key) => Err(format!("an annotation still attaches {key}")),
                None => Ok(()),
            }
        });
        self.checks.check(format!("of {map} exactly these keys are left: {}", keys.join(", ")), seen);
    }

    /// Waits until an ended lease is gone itself.
    async fn released(&self, name: &str) {
        self.observer.wait(Instant::now() + TOLERANCE, |seen| seen.lease(name).gone.is_some()).await;
        let gone = self.leases.get_opt(name).await.map_err(|error| error.to_string());
        let gone =
            gone.and_then(|lease| is(&lease.is_none(), &true).map_err(|_| "it is still there".to_owned()));
        self.checks.check(format!("{name} itself went last"), gone);
    }

    /// Events are written a few a second at most, so this one may take a moment.
    async fn has_event(&self, about: &str, reason: &str) -> Result<(), String> {
        let by = Instant::now() + TOLERANCE;
        loop {
            let events =
                self.stage.events().list(&Default::default()).await.map_err(|error| error.to_string())?;
            let found = events.items.iter().any(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(about)
            });
            if found {
                return Ok(());
            }
            if Instant::now() > by {
                return Err(format!("no Event {reason} about {about}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn lease(&self, name: &str) -> Result<Lease, String> {
        self.leases.get(name).await.map_err(|error| error.to_string())
    }

    async fn map(&self, name: &str) -> Result<ConfigMap, String> {
        self.maps.get(name).await.map_err(|error| error.to_string())
    }

    fn granted_at(&self, name: &str) -> Option<Instant> {
        self.observer.seen().lease(name).renewed.map(|granted| granted.latest)
    }

    fn left(&self, name: &str) -> Duration {
        let deadline = self.observer.seen().lease(name).deadline();
        deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    fn sum_up(&self) {
        let seen = self.observer.seen();
        let millis = |late: Option<Duration>| late.unwrap_or_default().as_millis();
        let ended = millis(seen.leases.values().filter_map(SeenLease::late).max());
        let removed = millis(seen.removed.values().max().copied());
        if !self.checks.all_held() {
            let broken = self.checks.broken();
            let all = broken.len() + self.checks.held();
            self.timeline.failure(&format!(
                "{} of {all} checks didn't hold:\n    {}",
                broken.len(),
                broken.join("\n    ")
            ));
            return;
        }
        self.timeline.success(&format!(
            "All {} checks held. No lease ended early, none later than {ended} ms; what was attached was gone within \
             {removed} ms.",
            self.checks.held(),
        ));
        if let Some(requests) = self.stage.operator_requests() {
            self.timeline
                .say(&format!("  The operator sent {requests} requests for all of this, Events aside."));
        }
    }
}

fn is_granted(lease: &Lease) -> Result<(), String> {
    let state = state(lease).unwrap_or_else(|| "not granted".to_owned());
    is(&state.as_str(), &reason::GRANTED)
}

fn state(lease: &Lease) -> Option<String> {
    active_reason(lease.status.as_ref()?)
}
