//! What the API server shows to the quickstart's own watches, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::Future,
    time::Duration,
};

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use lessor_api::{
    Attachments, KeyForm, Lease, LeaseStatus,
    lease::{condition, reason},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{Instant, interval, timeout_at},
};

use crate::timeline::{Timeline, What};

/// When the API server accepted something: it was asked, and did it, within this time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Before the request was sent.
    pub(crate) earliest: Instant,
    /// After the answer came.
    pub(crate) latest: Instant,
}

/// A lease, as far as it was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenLease {
    /// When it was asked for.
    pub(crate) asked: Option<Instant>,
    /// The TTL that was granted.
    pub(crate) ttl: Option<Duration>,
    /// The grant, or the last renewal.
    pub(crate) renewed: Option<Span>,
    /// When it was seen that little remains.
    pub(crate) expiring: Option<Instant>,
    /// Its deletion by a client.
    pub(crate) deleted: Option<Span>,
    /// When its end was seen, and the reason.
    pub(crate) ended: Option<(Instant, String)>,
    /// When the object was gone.
    pub(crate) gone: Option<Instant>,
}

impl SeenLease {
    /// When it may end at the earliest, unless it is renewed or deleted.
    pub(crate) fn earliest_deadline(&self) -> Option<Instant> {
        Some(self.renewed?.earliest + self.ttl?)
    }

    /// When it has to end at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Some(self.renewed?.latest + self.ttl?)
    }

    /// How long after what it was due to its end was seen.
    pub(crate) fn late(&self) -> Option<Duration> {
        Some(self.ended.as_ref()?.0.saturating_duration_since(self.cause()?.0))
    }

    /// What its end was due to: when that was, and its name.
    fn cause(&self) -> Option<(Instant, &'static str)> {
        match self.deleted {
            Some(deleted) => Some((deleted.latest, "deletion")),
            None => Some((self.deadline()?, "deadline")),
        }
    }
}

/// Everything that was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Leases by name.
    pub(crate) leases: BTreeMap<String, SeenLease>,
    /// When a ConfigMap, or one of its keys, was seen to be gone that was attached to a lease, and how late that was.
    pub(crate) removed: BTreeMap<Item, Duration>,
    maps: BTreeMap<String, SeenMap>,
}

/// What can be attached: a ConfigMap, or a key of it.
pub(crate) type Item = (String, Option<String>);

#[derive(Clone, Debug, Default)]
struct SeenMap {
    attachments: Attachments,
    keys: BTreeSet<String>,
}

impl Seen {
    /// A lease, by its name.
    pub(crate) fn lease(&self, name: &str) -> SeenLease {
        self.leases.get(name).cloned().unwrap_or_default()
    }

    fn late(&self, lease: &str, at: Instant) -> (Duration, &'static str) {
        let cause = self.leases.get(lease).and_then(SeenLease::cause);
        let (since, name) = cause.unwrap_or((at, "deadline"));
        (at.saturating_duration_since(since), name)
    }
}

/// Watches leases and ConfigMaps of one namespace, and tells what it sees. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    seen: watch::Sender<Seen>,
    timeline: Timeline,
}

type Told = Vec<(What, String, String)>;

impl Observer {
    /// Has seen nothing yet.
    pub(crate) fn new(timeline: &Timeline) -> Self {
        Self { seen: watch::Sender::default(), timeline: timeline.clone() }
    }

    /// What was seen until now.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Adds what the caller knows of a lease.
    pub(crate) fn note(&self, lease: &str, change: impl FnOnce(&mut SeenLease)) {
        self.seen.send_modify(|seen| change(seen.leases.entry(lease.to_owned()).or_default()));
    }

    /// Waits until `condition` holds; false if it doesn't by then.
    pub(crate) async fn wait(&self, by: Instant, condition: impl FnMut(&Seen) -> bool) -> bool {
        timeout_at(by, self.seen.subscribe().wait_for(condition)).await.is_ok_and(|seen| seen.is_ok())
    }

    /// Watches for ever.
    pub(crate) fn watch(
        &self,
        leases: Api<Lease>,
        maps: Api<ConfigMap>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (one, two, three) = (self.clone(), self.clone(), self.clone());
        async move {
            tokio::join!(
                each_change(leases, |change| one.see(|seen, at| see_lease(seen, at, change))),
                each_change(maps, |change| two.see(|seen, at| see_map(seen, at, change))),
                three.show_time_left(),
            );
        }
    }

    fn see(&self, see: impl FnOnce(&mut Seen, Instant) -> Told) {
        let at = Instant::now();
        let mut told = Told::new();
        self.seen.send_modify(|seen| told = see(seen, at));
        for (what, whom, detail) in told {
            self.timeline.event(what, &whom, &detail);
        }
    }

    async fn show_time_left(&self) {
        if !self.timeline.is_live() {
            return;
        }
        let mut ticks = interval(Duration::from_millis(100));
        loop {
            ticks.tick().await;
            let seen = self.seen.borrow().clone();
            let lines = seen.leases.iter().filter(|(_, lease)| lease.ended.is_none());
            let lines = lines.filter_map(|(name, lease)| {
                let left = lease.deadline()?.saturating_duration_since(Instant::now());
                Some(self.timeline.bar(name, left, lease.ttl?))
            });
            self.timeline.footer(lines.collect());
        }
    }
}

enum Change<K> {
    There(K),
    Gone(String),
}

async fn each_change<K>(api: Api<K>, mut tell: impl FnMut(Change<K>))
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut known = BTreeSet::new();
    let mut listed = BTreeSet::new();
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Apply(object))) => {
                known.insert(object.name_any());
                tell(Change::There(object));
            }
            Ok(Some(watcher::Event::Delete(object))) => {
                known.remove(&object.name_any());
                tell(Change::Gone(object.name_any()));
            }
            Ok(Some(watcher::Event::Init)) => listed.clear(),
            Ok(Some(watcher::Event::InitApply(object))) => {
                listed.insert(object.name_any());
                tell(Change::There(object));
            }
            Ok(Some(watcher::Event::InitDone)) => {
                for name in known.difference(&listed) {
                    tell(Change::Gone(name.clone()));
                }
                known.clone_from(&listed);
            }
            // The watch begins anew; what it missed comes with the list.
            Err(_) => {}
            Ok(None) => return,
        }
    }
}

fn see_lease(seen: &mut Seen, at: Instant, change: Change<Lease>) -> Told {
    let mut told = Told::new();
    match change {
        Change::Gone(name) => {
            seen.leases.entry(name.clone()).or_default().gone = Some(at);
            told.push((What::Released, name, "nothing of it is left".to_owned()));
        }
        Change::There(lease) => {
            let name = lease.name_any();
            let status = lease.status.unwrap_or_default();
            let known = seen.leases.entry(name.clone()).or_default();
            if let (None, Some(ttl)) = (known.renewed, status.granted_ttl_seconds) {
                known.ttl = Some(Duration::from_secs(ttl.unsigned_abs()));
                known.renewed = Some(Span { earliest: known.asked.unwrap_or(at), latest: at });
                let holder = lease.spec.holder.unwrap_or_else(|| "its holder".to_owned());
                told.push((
                    What::Granted,
                    name.clone(),
                    format!("{} to live, unless {holder} renews it", time(ttl)),
                ));
            }
            if known.expiring.is_none() && condition_is_true(&status, condition::EXPIRING) {
                known.expiring = Some(at);
                let left = known.deadline().map_or(0.0, |deadline| (deadline - at).as_secs_f64());
                told.push((What::Expiring, name.clone(), format!("{left:.2} s are left: a warning")));
            }
            if known.ended.is_none() && status.end_time.is_some() {
                let reason = active_reason(&status).unwrap_or_default();
                let what = if reason == reason::REVOKED { What::Revoked } else { What::Expired };
                known.ended = Some((at, reason));
                let (late, cause) = seen.late(&name, at);
                told.push((what, name, format!("{} ms after its {cause}", late.as_millis())));
            }
        }
    }
    told
}

fn see_map(seen: &mut Seen, at: Instant, change: Change<ConfigMap>) -> Told {
    let mut told = Told::new();
    match change {
        Change::Gone(name) => {
            let before = seen.maps.remove(&name).unwrap_or_default();
            if let Some(lease) = before.attachments.whole {
                let (late, cause) = seen.late(lease.as_str(), at);
                seen.removed.insert((name.clone(), None), late);
                let detail = format!("the ConfigMap, {} ms after the {cause} of {lease}", late.as_millis());
                told.push((What::Removed, name, detail));
            }
        }
        Change::There(map) => {
            let name = map.name_any();
            let attachments = Attachments::parse(map.annotations(), KeyForm::Data);
            let keys = map.data.into_iter().flatten().map(|(key, _)| key).collect();
            let now = SeenMap { attachments, keys };
            let before = seen.maps.insert(name.clone(), now.clone()).unwrap_or_default();
            let gone =
                before.attachments.keys.iter().filter(|(key, _)| {
                    before.keys.contains(key.as_str()) && !now.keys.contains(key.as_str())
                });
            for (key, lease) in gone {
                let (late, cause) = seen.late(lease.as_str(), at);
                seen.removed.insert((name.clone(), Some(key.to_string())), late);
                let detail = format!("key {key}, {} ms after the {cause} of {lease}", late.as_millis());
                told.push((What::Removed, name.clone(), detail));
            }
        }
    }
    told
}

/// Whether this condition is True.
pub(crate) fn condition_is_true(status: &LeaseStatus, type_: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The reason of the condition `Active`.
pub(crate) fn active_reason(status: &LeaseStatus) -> Option<String> {
    let active = status.conditions.iter().find(|condition| condition.type_ == condition::ACTIVE)?;
    Some(active.reason.clone())
}

fn time(seconds: i64) -> String {
    match seconds {
        ..600 => format!("{seconds} s"),
        _ => format!("{} h", seconds / 3600),
    }
}
