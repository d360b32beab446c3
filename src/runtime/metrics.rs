//! The metrics of one replica at `/metrics`, in the OpenMetrics format.
//!
//! No label holds the name of an object or of a namespace, since their number is unbounded. Only the primary acts and counts, so
//! the counters of all replicas can be summed.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use lessor_core::{
    index::sources::{SourceKind, SourceWatch},
    lease_status::State,
    metric_event::MetricEvent,
    metrics_snapshot::MetricsSnapshot,
    observation::{Event, Failure, Observation},
    request::Response,
    watch_health::Scope,
};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

/// One label whose values are a fixed set.
type OneLabel = [(&'static str, &'static str); 1];
/// Two labels whose values are fixed sets.
type TwoLabels = [(&'static str, &'static str); 2];
type SecondsGauge = Gauge<f64, std::sync::atomic::AtomicU64>;

/// Buckets of the lateness of ends, in seconds.
const LATENESS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Buckets of the duration of requests, in seconds.
const LATENCY: [f64; 11] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// The metrics of one replica. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    counters: Counters,
    gauges: Gauges,
    /// The state of each watch, by kind and scope.
    watches: Arc<Mutex<HashMap<(String, Scope), &'static str>>>,
    events: EventCounts,
}

/// Counts of Kubernetes Events.
#[derive(Clone, Debug, Default)]
pub struct EventCounts {
    outcomes: Family<TwoLabels, Counter>,
    queued: Family<OneLabel, Gauge>,
}

impl EventCounts {
    /// Counts an Event by its outcome: `written`, `failed`, or `dropped` since the queue was full.
    pub fn count(&self, warning: bool, outcome: &'static str) {
        self.outcomes.get_or_create(&[("type", type_of(warning)), ("outcome", outcome)]).inc();
    }

    /// Sets how many Events the queue holds.
    pub fn queued(&self, warnings: usize, normals: usize) {
        self.queued.get_or_create(&[("type", type_of(true))]).set(whole(warnings));
        self.queued.get_or_create(&[("type", type_of(false))]).set(whole(normals));
    }
}

fn watch_state_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::NoSuchKind => watch_state::ABSENT,
        Failure::Forbidden(_) => watch_state::FORBIDDEN,
        _ => watch_state::FAILING,
    }
}

fn type_of(warning: bool) -> &'static str {
    if warning { "Warning" } else { "Normal" }
}

/// The states of a watch.
mod watch_state {
    pub(super) const SYNCED: &str = "synced";
    pub(super) const FAILING: &str = "failing";
    pub(super) const FORBIDDEN: &str = "forbidden";
    pub(super) const ABSENT: &str = "absent";
    pub(super) const ALL: [&str; 4] = [SYNCED, FAILING, FORBIDDEN, ABSENT];
}

#[derive(Clone, Debug)]
struct Counters {
    grants: Counter,
    renewals: Counter,
    followed_renewals: Family<OneLabel, Counter>,
    expiries: Counter,
    revokes: Counter,
    releases: Counter,
    removals: Family<OneLabel, Counter>,
    hindrances: Family<OneLabel, Counter>,
    lateness: Family<OneLabel, Histogram, fn() -> Histogram>,
    postponed: Counter,
    promotions: Counter,
    demotions: Counter,
    requests: Family<TwoLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, Default)]
struct Gauges {
    ready: Gauge,
    unserved: Gauge,
    is_primary: Gauge,
    term: Gauge,
    leases: Family<OneLabel, Gauge>,
    hindered: Gauge,
    sources: Family<OneLabel, Gauge>,
    followers: Family<TwoLabels, Gauge>,
    overdue: SecondsGauge,
    attachments: Family<OneLabel, Gauge>,
    pending: Gauge,
    queued: Gauge,
    in_flight: Gauge,
    observations: Gauge,
    since_last_response: SecondsGauge,
    disconnected: Gauge,
    watches: Family<[(&'static str, String); 2], Gauge>,
    memory: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Self {
        let counters = Counters {
            grants: Counter::default(),
            renewals: Counter::default(),
            followed_renewals: Family::default(),
            expiries: Counter::default(),
            revokes: Counter::default(),
            releases: Counter::default(),
            removals: Family::default(),
            hindrances: Family::default(),
            lateness: Family::new_with_constructor(|| Histogram::new(LATENESS)),
            postponed: Counter::default(),
            promotions: Counter::default(),
            demotions: Counter::default(),
            requests: Family::new_with_constructor(|| Histogram::new(LATENCY)),
        };
        let (gauges, events) = (Gauges::default(), EventCounts::default());
        events.queued(0, 0);
        for warning in [true, false] {
            let _ = events.outcomes.get_or_create(&[("type", type_of(warning)), ("outcome", "written")]);
        }
        let mut registry = Registry::default();
        process::register(&mut registry, &gauges.memory);
        let ours = registry.sub_registry_with_prefix("lessor");
        counters.register(ours);
        gauges.register(ours);
        ours.register("events", "Kubernetes Events by type and outcome", events.outcomes.clone());
        ours.register("events_queued", "Kubernetes Events waiting to be written", events.queued.clone());
        ours.register(
            "build",
            "The version of the operator",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        Self { registry: Arc::new(registry), counters, gauges, watches: Arc::default(), events }
    }

    /// The counts of Events.
    pub fn events(&self) -> EventCounts {
        self.events.clone()
    }

    /// Counts an action of the replica.
    pub fn count(&self, metric_event: MetricEvent) {
        let counters = &self.counters;
        let counter = match metric_event {
            MetricEvent::Emptied(late) => {
                counters.lateness.get_or_create(&[("until", "emptied")]).observe(late.as_secs_f64());
                return;
            }
            MetricEvent::Expired(late) => {
                counters.lateness.get_or_create(&[("until", "commit")]).observe(late.as_secs_f64());
                &counters.expiries
            }
            MetricEvent::RemovedObject => &*counters.removals.get_or_create(&[("what", "object")]),
            MetricEvent::RemovedKeys(keys) => {
                counters.removals.get_or_create(&[("what", "key")]).inc_by(keys as u64);
                return;
            }
            MetricEvent::Hindered(reason) => &*counters.hindrances.get_or_create(&[("reason", reason)]),
            MetricEvent::Granted => &counters.grants,
            MetricEvent::Renewed => &counters.renewals,
            MetricEvent::Followed(kind, leases) => {
                let renewals = counters.followed_renewals.get_or_create(&[("source", kind.label())]);
                renewals.inc_by(leases as u64);
                return;
            }
            MetricEvent::Revoked => &counters.revokes,
            MetricEvent::Released => &counters.releases,
            MetricEvent::Postponed => &counters.postponed,
            MetricEvent::Promoted => &counters.promotions,
            MetricEvent::Demoted => &counters.demotions,
        };
        counter.inc();
    }

    /// Counts a request and its response.
    pub fn request(&self, verb: &'static str, response: &Response, took: Duration) {
        let labels = [("verb", verb), ("outcome", response.outcome())];
        self.counters.requests.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Notes the state of the watch that brought this.
    pub fn observe(&self, observation: &Observation) {
        match observation {
            Observation::Lessor(event) => self.note("lessors.lessor.dev", None, event),
            // Nothing waits for it.
            Observation::OtherLessor(_) => {}
            Observation::Lease(scope, event) => self.note("leases.lessor.dev", scope.clone(), event),
            Observation::Object(kind, scope, event) => self.note(&kind.to_string(), scope.clone(), event),
            Observation::Source(source_watch, event) => {
                self.note(&watched_kind(source_watch), Some(source_watch.to_string().into()), event);
            }
            // From now on, the states of its watches count.
            Observation::Kind(name, Ok(_)) => drop(self.watches.lock().remove(&(name.to_string(), None))),
            Observation::Kind(name, Err(failure)) => {
                self.watches.lock().insert((name.to_string(), None), watch_state_of(failure));
            }
        }
    }

    /// Forgets a watch that was closed.
    pub fn forget(&self, source_watch: &SourceWatch) {
        self.watches.lock().remove(&(watched_kind(source_watch), Some(source_watch.to_string().into())));
    }

    fn note<T>(&self, kind: &str, scope: Scope, event: &Event<T>) {
        let state = match event {
            Event::Synced(_) | Event::Resumed => watch_state::SYNCED,
            Event::Failing(failure) => watch_state_of(failure),
            // An object may arrive before the initial list is complete. And every watch is reopened now and then.
            Event::Applied(_)
            | Event::Deleted(_)
            | Event::Bookmark(_)
            | Event::Listed(_)
            | Event::Interrupted => return,
        };
        self.watches.lock().insert((kind.to_owned(), scope), state);
    }

    /// Sets how many observations are queued.
    pub fn waiting(&self, observations: usize) {
        self.gauges.observations.set(whole(observations));
    }

    /// The text for a scraper.
    ///
    /// # Errors
    /// Never: a `String` can always grow.
    pub fn text(&self, snapshot: &MetricsSnapshot) -> Result<String, fmt::Error> {
        self.gauges.set(snapshot);
        self.gauges.memory.set(process::resident_memory());
        let mut watches: HashMap<(&str, &'static str), i64> = HashMap::new();
        let states = self.watches.lock();
        for ((kind, _), state) in states.iter() {
            for name in watch_state::ALL {
                *watches.entry((kind, name)).or_default() += i64::from(*state == name);
            }
        }
        for ((kind, state), count) in watches {
            self.gauges
                .watches
                .get_or_create(&[("kind", kind.to_owned()), ("state", state.to_owned())])
                .set(count);
        }
        drop(states);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Counters {
    fn register(&self, to: &mut Registry) {
        to.register("grants", "Leases granted", self.grants.clone());
        to.register("renewals", "Renewals by holders, counted by the primary", self.renewals.clone());
        to.register(
            "followed_renewals",
            "Renewals of leases by heartbeats of their source, counted by the primary, by kind of source",
            self.followed_renewals.clone(),
        );
        to.register("expiries", "Leases ended by time", self.expiries.clone());
        to.register("revokes", "Leases ended by their deletion", self.revokes.clone());
        to.register("releases", "Ended leases whose attachments are all removed", self.releases.clone());
        to.register("removals", "Attached objects and keys that were removed", self.removals.clone());
        to.register("hindrances", "Removals that the API server refused, by reason", self.hindrances.clone());
        to.register_with_unit(
            "expiry_lateness",
            "Time from the deadline of a lease until its end was committed, and until everything attached was removed",
            Unit::Seconds,
            self.lateness.clone(),
        );
        to.register(
            "status_writes_postponed",
            "Status writes postponed because their budget was spent",
            self.postponed.clone(),
        );
        to.register("promotions", "Times that this replica became primary", self.promotions.clone());
        to.register("demotions", "Times that this replica stopped being primary", self.demotions.clone());
        to.register_with_unit(
            "request_duration",
            "Duration of requests to the API server, by verb and outcome",
            Unit::Seconds,
            self.requests.clone(),
        );
        // Each exists from the start with zero, so that `rate` covers the first increment.
        for kind in SourceKind::ALL {
            let _ = self.followed_renewals.get_or_create(&[("source", kind.label())]);
        }
        for what in ["object", "key"] {
            let _ = self.removals.get_or_create(&[("what", what)]);
        }
        for until in ["commit", "emptied"] {
            let _ = self.lateness.get_or_create(&[("until", until)]);
        }
    }
}

impl Gauges {
    fn register(&self, to: &mut Registry) {
        to.register("ready", "Whether all initial lists of this replica are complete", self.ready.clone());
        to.register(
            "unserved_namespaces",
            "Namespaces to serve whose leases can't be read",
            self.unserved.clone(),
        );
        to.register("is_primary", "Whether this replica is primary", self.is_primary.clone());
        to.register("term", "The highest term that this replica has observed", self.term.clone());
        to.register("leases", "Leases by state", self.leases.clone());
        to.register(
            "leases_hindered",
            "Ended leases with an attachment that can't be removed",
            self.hindered.clone(),
        );
        to.register("followed_sources", "Sources that leases follow, by kind", self.sources.clone());
        to.register(
            "followers",
            "Leases that follow a source, by kind of source and by whether it keeps them alive; unknown: the source can't be watched",
            self.followers.clone(),
        );
        to.register_with_unit(
            "overdue",
            "How long the earliest unfinished deadline has passed",
            Unit::Seconds,
            self.overdue.clone(),
        );
        to.register("attachments", "Attached objects and keys", self.attachments.clone());
        to.register(
            "attachments_pending",
            "Attached objects whose lease doesn't exist",
            self.pending.clone(),
        );
        to.register("work_queued", "Leases and objects with work queued or in progress", self.queued.clone());
        to.register("requests_in_flight", "Requests in flight", self.in_flight.clone());
        to.register("observations_queued", "Watch events not yet processed", self.observations.clone());
        to.register_with_unit(
            "apiserver_last_response_age",
            "Time since the last response or watch event of the API server",
            Unit::Seconds,
            self.since_last_response.clone(),
        );
        to.register(
            "apiserver_disconnected",
            "Whether the API server is unreachable, so that lease time stands still",
            self.disconnected.clone(),
        );
        to.register("watches", "Watches by kind and state", self.watches.clone());
    }

    fn set(&self, snapshot: &MetricsSnapshot) {
        self.ready.set(snapshot.ready.into());
        self.unserved.set(whole(snapshot.unserved));
        self.is_primary.set(snapshot.leads.is_some().into());
        self.term.set(snapshot.term);
        for (state, count) in &snapshot.leases {
            let state = state.map_or("Ungranted", State::reason);
            self.leases.get_or_create(&[("state", state)]).set(whole(*count));
        }
        self.hindered.set(whole(snapshot.hindered));
        for tally in &snapshot.followed {
            let source = ("source", tally.kind.label());
            self.sources.get_or_create(&[source]).set(whole(tally.sources));
            for (alive, count) in [("true", tally.alive), ("false", tally.other), ("unknown", tally.unseen)] {
                self.followers.get_or_create(&[source, ("alive", alive)]).set(whole(count));
            }
        }
        self.overdue.set(snapshot.overdue.as_secs_f64());
        self.attachments.get_or_create(&[("what", "object")]).set(whole(snapshot.objects));
        self.attachments.get_or_create(&[("what", "key")]).set(whole(snapshot.keys));
        self.pending.set(whole(snapshot.pending));
        self.queued.set(whole(snapshot.queued));
        self.in_flight.set(whole(snapshot.in_flight));
        self.since_last_response.set(snapshot.since_last_response.as_secs_f64());
        self.disconnected.set(snapshot.disconnected.into());
    }
}

/// The kind of a source, as `lessor_watches` names it.
fn watched_kind(source_watch: &SourceWatch) -> String {
    match source_watch.kind.resource() {
        ("", resource) => resource.to_owned(),
        (group, resource) => format!("{resource}.{group}"),
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Metrics that every process has, under their usual names.
mod process {
    use super::*;

    pub(super) fn register(to: &mut Registry, memory: &Gauge) {
        let start: SecondsGauge = Gauge::default();
        start.set(Timestamp::now().as_duration().as_secs_f64());
        to.register_with_unit("process_start_time", "Start time of the process", Unit::Seconds, start);
        to.register_with_unit("process_resident_memory", "Resident memory", Unit::Bytes, memory.clone());
    }

    /// From Linux' procfs; zero elsewhere.
    pub(super) fn resident_memory() -> i64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<i64>().ok());
        kilobytes.unwrap_or_default().saturating_mul(1024)
    }
}

#[cfg(test)]
mod tests {
    use lessor_core::listed_keys::ListedKeys;

    use super::*;

    fn text(metrics: &Metrics) -> String {
        metrics.text(&MetricsSnapshot::default()).expect("text")
    }

    #[test]
    fn counted_actions_are_in_the_text() {
        let metrics = Metrics::new();
        metrics.count(MetricEvent::Granted);
        metrics.count(MetricEvent::Expired(Duration::from_millis(30)));
        metrics.count(MetricEvent::RemovedKeys(3));
        metrics.request("write-status", &Response::Deleted, Duration::from_millis(4));
        let text = text(&metrics);
        for line in [
            "lessor_grants_total 1",
            "lessor_renewals_total 0",
            "lessor_expiry_lateness_seconds_count{until=\"commit\"} 1",
            "lessor_removals_total{what=\"key\"} 3",
            "lessor_request_duration_seconds_count{verb=\"write-status\",outcome=\"ok\"} 1",
            concat!("lessor_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_watch_is_in_one_state_and_recovers() {
        let metrics = Metrics::new();
        let expect = |state: &str, count: u8| {
            let line = format!("lessor_watches{{kind=\"configmaps\",state=\"{state}\"}} {count}");
            assert!(text(&metrics).lines().any(|found| found == line), "{line}");
        };
        let note = |event: Event<()>| metrics.note("configmaps", None, &event);
        note(Event::Failing(Failure::Forbidden("no".to_owned())));
        expect("forbidden", 1);
        expect("synced", 0);
        note(Event::Synced(ListedKeys::default()));
        expect("synced", 1);
        note(Event::Failing(Failure::Other("reset".to_owned())));
        expect("failing", 1);
        note(Event::Resumed);
        expect("synced", 1);
    }
}
