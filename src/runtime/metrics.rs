//! What one replica counts and shows at `/metrics`, in the OpenMetrics format.
//!
//! No label holds the name of an object or of a namespace: their number is nobody's to bound. Only the primary does and
//! counts things, so that the counters of all replicas add up.

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

/// One label, or two, whose values are a fixed set.
type One = [(&'static str, &'static str); 1];
type Two = [(&'static str, &'static str); 2];
type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

/// From a millisecond to five minutes: how late ends are, and how long requests take.
const LATENESS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const LATENCY: [f64; 11] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// The metrics of one replica. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    counters: Counters,
    gauges: Gauges,
    /// How each watch does: by kind and scope.
    watches: Arc<Mutex<HashMap<(String, Scope), &'static str>>>,
    events: EventCounts,
}

/// Counts of Events, for whoever writes them.
#[derive(Clone, Debug, Default)]
pub struct EventCounts {
    outcomes: Family<Two, Counter>,
    waiting: Family<One, Gauge>,
}

impl EventCounts {
    /// An Event was `written`, has `failed`, or was `dropped` since too many waited.
    pub fn count(&self, warning: bool, outcome: &'static str) {
        self.outcomes.get_or_create(&[("type", type_of(warning)), ("outcome", outcome)]).inc();
    }

    /// So many wait to be written.
    pub fn waiting(&self, warnings: usize, others: usize) {
        self.waiting.get_or_create(&[("type", type_of(true))]).set(whole(warnings));
        self.waiting.get_or_create(&[("type", type_of(false))]).set(whole(others));
    }
}

fn state_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::NoSuchKind => sight::ABSENT,
        Failure::Forbidden(_) => sight::FORBIDDEN,
        _ => sight::FAILING,
    }
}

fn type_of(warning: bool) -> &'static str {
    if warning { "Warning" } else { "Normal" }
}

/// How a watch does, in a word.
mod sight {
    pub(super) const SEEING: &str = "seeing";
    pub(super) const FAILING: &str = "failing";
    pub(super) const FORBIDDEN: &str = "forbidden";
    pub(super) const ABSENT: &str = "absent";
    pub(super) const ALL: [&str; 4] = [SEEING, FAILING, FORBIDDEN, ABSENT];
}

#[derive(Clone, Debug)]
struct Counters {
    grants: Counter,
    renewals: Counter,
    followed_renewals: Family<One, Counter>,
    expiries: Counter,
    revokes: Counter,
    releases: Counter,
    removals: Family<One, Counter>,
    hindrances: Family<One, Counter>,
    lateness: Family<One, Histogram, fn() -> Histogram>,
    postponed: Counter,
    promotions: Counter,
    demotions: Counter,
    requests: Family<Two, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, Default)]
struct Gauges {
    ready: Gauge,
    is_primary: Gauge,
    term: Gauge,
    leases: Family<One, Gauge>,
    hindered: Gauge,
    sources: Family<One, Gauge>,
    followers: Family<Two, Gauge>,
    overdue: Seconds,
    attachments: Family<One, Gauge>,
    pending: Gauge,
    queued: Gauge,
    in_flight: Gauge,
    observations: Gauge,
    since_last_response: Seconds,
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
        events.waiting(0, 0);
        for warning in [true, false] {
            let _ = events.outcomes.get_or_create(&[("type", type_of(warning)), ("outcome", "written")]);
        }
        let mut registry = Registry::default();
        process::register(&mut registry, &gauges.memory);
        let ours = registry.sub_registry_with_prefix("lessor");
        counters.register(ours);
        gauges.register(ours);
        ours.register("events", "Events, by type and by what became of them", events.outcomes.clone());
        ours.register("events_queued", "Events that wait to be written", events.waiting.clone());
        ours.register("build", "What runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        Self { registry: Arc::new(registry), counters, gauges, watches: Arc::default(), events }
    }

    /// The counts of Events.
    pub fn events(&self) -> EventCounts {
        self.events.clone()
    }

    /// Counts what a replica has done.
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

    /// Counts a request and its answer.
    pub fn request(&self, verb: &'static str, answer: &Response, took: Duration) {
        let labels = [("verb", verb), ("outcome", answer.outcome())];
        self.counters.requests.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Notes how the watch does that brought this.
    pub fn observe(&self, observation: &Observation) {
        match observation {
            Observation::Lessor(seen) => self.note("lessors.lessor.dev", None, seen),
            Observation::Lease(scope, seen) => self.note("leases.lessor.dev", scope.clone(), seen),
            Observation::Object(kind, scope, seen) => self.note(&kind.to_string(), scope.clone(), seen),
            Observation::Source(source_watch, seen) => {
                self.note(&watched(source_watch), Some(source_watch.to_string().into()), seen);
            }
            // It is watched from now on, and its watches say more.
            Observation::Kind(name, Ok(_)) => drop(self.watches.lock().remove(&(name.to_string(), None))),
            Observation::Kind(name, Err(failure)) => {
                self.watches.lock().insert((name.to_string(), None), state_of(failure));
            }
        }
    }

    /// Takes in that something is watched no more.
    pub fn forget(&self, source_watch: &SourceWatch) {
        self.watches.lock().remove(&(watched(source_watch), Some(source_watch.to_string().into())));
    }

    fn note<T>(&self, kind: &str, scope: Scope, seen: &Event<T>) {
        let state = match seen {
            Event::Synced(_) | Event::Resumed => sight::SEEING,
            Event::Failing(failure) => state_of(failure),
            // Shown before all is shown, it proves nothing. And every watch is opened anew now and then.
            Event::Applied(_) | Event::Deleted(_) | Event::Interrupted => return,
        };
        self.watches.lock().insert((kind.to_owned(), scope), state);
    }

    /// Notes how many observations wait to be looked at.
    pub fn waiting(&self, observations: usize) {
        self.gauges.observations.set(whole(observations));
    }

    /// The text for a scraper.
    ///
    /// # Errors
    /// Never, as long as a `String` can grow.
    pub fn text(&self, figures: &MetricsSnapshot) -> Result<String, fmt::Error> {
        self.gauges.set(figures);
        self.gauges.memory.set(process::resident_memory());
        let mut watches: HashMap<(&str, &'static str), i64> = HashMap::new();
        let known = self.watches.lock();
        for ((kind, _), state) in known.iter() {
            for name in sight::ALL {
                *watches.entry((kind, name)).or_default() += i64::from(*state == name);
            }
        }
        for ((kind, state), count) in watches {
            self.gauges
                .watches
                .get_or_create(&[("kind", kind.to_owned()), ("state", state.to_owned())])
                .set(count);
        }
        drop(known);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Counters {
    fn register(&self, to: &mut Registry) {
        to.register("grants", "Leases granted", self.grants.clone());
        to.register("renewals", "Renewals seen while primary", self.renewals.clone());
        to.register(
            "followed_renewals",
            "Renewals of leases by beats of what they follow, seen while primary, by kind of source",
            self.followed_renewals.clone(),
        );
        to.register("expiries", "Ends of leases by time that were committed", self.expiries.clone());
        to.register("revokes", "Ends of leases before their time that were committed", self.revokes.clone());
        to.register("releases", "Ended leases whose release is complete", self.releases.clone());
        to.register("removals", "What was removed with its lease: objects and keys", self.removals.clone());
        to.register("hindrances", "Removals that can't be done, by reason", self.hindrances.clone());
        to.register_with_unit(
            "expiry_lateness",
            "Time from the deadline of a lease to the commit of its end, and until all that was attached was gone",
            Unit::Seconds,
            self.lateness.clone(),
        );
        to.register(
            "status_writes_postponed",
            "Writes of status that were put off, since the budget for such writes was spent",
            self.postponed.clone(),
        );
        to.register("promotions", "How often this replica became primary", self.promotions.clone());
        to.register("demotions", "How often this replica ceased to be primary", self.demotions.clone());
        to.register_with_unit(
            "request_duration",
            "How long the API server took to answer requests, by what was asked and what came of it",
            Unit::Seconds,
            self.requests.clone(),
        );
        // What never happened is shown as zero, so that a rate sees the first time it does.
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
        to.register("ready", "Whether this replica has seen enough to act", self.ready.clone());
        to.register("is_primary", "Whether this replica is primary", self.is_primary.clone());
        to.register("term", "The highest term that this replica knows of", self.term.clone());
        to.register("leases", "Leases by state", self.leases.clone());
        to.register("leases_hindered", "Ended leases whose release is hindered", self.hindered.clone());
        to.register("followed_sources", "What leases follow, by kind of source", self.sources.clone());
        to.register(
            "followers",
            "Leases that follow something, by kind of source and by whether that keeps them alive, or can't be seen",
            self.followers.clone(),
        );
        to.register_with_unit(
            "overdue",
            "For how long the first lease that is due has been due",
            Unit::Seconds,
            self.overdue.clone(),
        );
        to.register("attachments", "What is attached to leases: objects and keys", self.attachments.clone());
        to.register(
            "attachments_pending",
            "Objects attached to a lease that isn't there",
            self.pending.clone(),
        );
        to.register(
            "work_queued",
            "Leases and objects that wait for something to be done",
            self.queued.clone(),
        );
        to.register("requests_in_flight", "Requests under way", self.in_flight.clone());
        to.register(
            "observations_queued",
            "What watches have shown and was not yet looked at",
            self.observations.clone(),
        );
        to.register_with_unit(
            "apiserver_last_response_age",
            "How long ago the API server was heard",
            Unit::Seconds,
            self.since_last_response.clone(),
        );
        to.register(
            "apiserver_disconnected",
            "Whether the API server isn't heard, so that lease time stands still",
            self.disconnected.clone(),
        );
        to.register("watches", "Watches by kind and by how they do", self.watches.clone());
    }

    fn set(&self, figures: &MetricsSnapshot) {
        self.ready.set(figures.ready.into());
        self.is_primary.set(figures.leads.is_some().into());
        self.term.set(figures.term);
        for (state, count) in &figures.leases {
            let state = state.map_or("Ungranted", State::reason);
            self.leases.get_or_create(&[("state", state)]).set(whole(*count));
        }
        self.hindered.set(whole(figures.hindered));
        for tally in &figures.followed {
            let source = ("source", tally.kind.label());
            self.sources.get_or_create(&[source]).set(whole(tally.sources));
            for (alive, count) in [("true", tally.alive), ("false", tally.other), ("unseen", tally.unseen)] {
                self.followers.get_or_create(&[source, ("alive", alive)]).set(whole(count));
            }
        }
        self.overdue.set(figures.overdue.as_secs_f64());
        self.attachments.get_or_create(&[("what", "object")]).set(whole(figures.objects));
        self.attachments.get_or_create(&[("what", "key")]).set(whole(figures.keys));
        self.pending.set(whole(figures.pending));
        self.queued.set(whole(figures.queued));
        self.in_flight.set(whole(figures.in_flight));
        self.since_last_response.set(figures.since_last_response.as_secs_f64());
        self.disconnected.set(figures.disconnected.into());
    }
}

/// What is watched, as `lessor_watches` names it.
fn watched(source_watch: &SourceWatch) -> String {
    match source_watch.kind.resource() {
        ("", resource) => resource.to_owned(),
        (group, resource) => format!("{resource}.{group}"),
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What every process shows, under the names that all use.
mod process {
    use super::*;

    pub(super) fn register(to: &mut Registry, memory: &Gauge) {
        let start: Seconds = Gauge::default();
        start.set(Timestamp::now().as_duration().as_secs_f64());
        to.register_with_unit("process_start_time", "When this process started", Unit::Seconds, start);
        to.register_with_unit("process_resident_memory", "Memory in use", Unit::Bytes, memory.clone());
    }

    /// What Linux says of it; zero where nothing does.
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
    fn what_is_counted_is_shown() {
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
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_watch_is_in_one_state_and_recovers() {
        let metrics = Metrics::new();
        let shown = |state: &str, count: u8| {
            let line = format!("lessor_watches{{kind=\"configmaps\",state=\"{state}\"}} {count}");
            assert!(text(&metrics).lines().any(|shown| shown == line), "{line}");
        };
        let see = |seen: Event<()>| metrics.note("configmaps", None, &seen);
        see(Event::Failing(Failure::Forbidden("no".to_owned())));
        shown("forbidden", 1);
        shown("seeing", 0);
        see(Event::Synced(ListedKeys::default()));
        shown("seeing", 1);
        see(Event::Failing(Failure::Other("reset".to_owned())));
        shown("failing", 1);
        see(Event::Resumed);
        shown("seeing", 1);
    }
}
