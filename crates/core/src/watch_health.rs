//! The health of the watches of attachable kinds: which are in sync, which fail, and since when.
//!
//! An object that a failing watch doesn't report may be attached to a lease that ends. So a kind whose watch has failed for a
//! short time blocks releases. One whose watch has failed for long doesn't, so that no kind delays the others for ever.
//!
//! A connection may be dead without a sign. So a watch also blocks releases while it has been silent for longer than it takes
//! until the next bookmark. The runtime opens a silent watch again soon after that, whether or not the API sends bookmarks.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    time::Duration,
};

use lease_engine::LeaseTime;

use crate::{clocks::Now, kind::KindName, observation::Failure};

pub use crate::observation::Scope;

/// For this long, a failing watch blocks the release of leases. In lease time, which is paused while the API server can't be
/// reached: an outage uses up nothing of it.
const PATIENCE: Duration = Duration::from_secs(30);
/// A watch that is open again after a failure may take this long to deliver missed events. After a regular end, it may take as
/// long as opening it took, and at most this.
const CATCHING_UP: Duration = Duration::from_secs(3);
/// The API server sends a bookmark each minute. A watch that has reported nothing for this long may be dead.
const SILENT_AFTER: Duration = Duration::from_secs(75);
/// How often to look whether a silent watch has been opened again.
const RECHECK: Duration = Duration::from_secs(1);
/// A transient failure is reported to users once it has lasted this long.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// The health of the watches of all attachable kinds.
#[derive(Clone, Debug, Hash, Default)]
pub struct WatchHealth {
    kinds: BTreeMap<KindName, BTreeMap<Scope, WatchState>>,
}

/// The state of one watch.
#[derive(Clone, Debug, Hash, Default)]
struct WatchState {
    /// Whether it has delivered a whole list once.
    synced: bool,
    /// Its current failure.
    failure: Option<Failure>,
    /// Since when it is being reopened after a regular end, or first listed.
    interrupted: Option<Duration>,
    heard: LastEvent,
    failures: FailureWindow,
    /// Counted apart from failures: each watch is reopened every few minutes, which must use up nothing of the time that a
    /// failure may block releases.
    interruptions: FailureWindow,
}

/// When a watch last reported anything.
///
/// Left out of hashes. It decides nothing in the first [`SILENT_AFTER`] of a run, and runs of the model checker are shorter.
#[derive(Clone, Debug, Default)]
struct LastEvent(Duration);

impl Hash for LastEvent {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A period in which a watch fails again and again. Recoveries shorter than [`PATIENCE`] don't end it.
#[derive(Clone, Debug, Hash, Default)]
struct FailureWindow {
    /// When it began.
    since: Duration,
    /// The same, in lease time.
    since_in_lease_time: LeaseTime,
    /// When the watch failed last.
    until: Option<LeaseTime>,
    /// When it has delivered all missed events at the latest.
    caught_up_at: Duration,
}

/// Why the watch of a kind fails, for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindProblem {
    /// The kind.
    pub kind: KindName,
    /// The failure.
    pub failure: Failure,
}

impl WatchHealth {
    /// These kinds in these scopes, none of which has been listed yet.
    pub fn new(kinds: impl IntoIterator<Item = KindName>, scopes: &[Scope]) -> Self {
        let unseen = || scopes.iter().map(|scope| (scope.clone(), WatchState::default())).collect();
        Self { kinds: kinds.into_iter().map(|kind| (kind, unseen())).collect() }
    }

    /// Notes that discovery has found a kind, whose objects are being listed from now on.
    pub fn found(&mut self, kind: &KindName, now: &Now) {
        for watch in self.kinds.entry(kind.clone()).or_default().values_mut() {
            watch.interruptions.record_failure(now);
            watch.interrupted = Some(now.mono);
        }
    }

    /// Notes that a watch has reported something. Returns whether it had been silent for long.
    pub fn heard(&mut self, kind: &KindName, scope: &Scope, now: &Now) -> bool {
        let watch = self.watch(kind, scope);
        let was_silent = watch.is_silent(now);
        watch.heard = LastEvent(now.mono);
        was_silent
    }

    /// Notes that a watch has delivered all objects of a kind in a scope.
    pub fn synced(&mut self, kind: &KindName, scope: &Scope, now: &Now) {
        let watch = self.watch(kind, scope);
        watch.synced = true;
        watch.recover(now);
    }

    /// Notes that a watch has ended regularly and is being reopened.
    pub fn interrupted(&mut self, kind: &KindName, scope: &Scope, now: &Now) {
        self.watch(kind, scope).interrupt(now);
    }

    /// Notes that all watches are being opened anew.
    pub fn all_interrupted(&mut self, now: &Now) {
        for watch in self.kinds.values_mut().flat_map(BTreeMap::values_mut) {
            watch.interrupt(now);
        }
    }

    /// Notes that a watch continues where it had stopped. Returns whether it was failing, silent or being reopened before.
    pub fn resumed(&mut self, kind: &KindName, scope: &Scope, now: &Now) -> bool {
        self.watch(kind, scope).recover(now)
    }

    /// Notes that a watch fails. Returns whether the failure is a new one.
    pub fn failing(&mut self, kind: &KindName, scope: &Scope, failure: Failure, now: &Now) -> bool {
        self.watch(kind, scope).fail(failure, now)
    }

    /// Notes that discovery of a kind fails. Returns whether the failure is a new one.
    pub fn unknown(&mut self, kind: &KindName, failure: &Failure, now: &Now) -> bool {
        let scopes = self.kinds.entry(kind.clone()).or_default();
        scopes.values_mut().filter_map(|watch| watch.fail(failure.clone(), now).then_some(())).count() > 0
    }

    fn watch(&mut self, kind: &KindName, scope: &Scope) -> &mut WatchState {
        self.kinds.entry(kind.clone()).or_default().entry(scope.clone()).or_default()
    }

    /// Kinds that have been neither listed nor found to fail.
    pub fn unseen(&self) -> impl Iterator<Item = &KindName> {
        let unseen =
            |watch: &WatchState| !watch.synced && watch.failure.is_none() && watch.failures.until.is_none();
        self.kinds.iter().filter(move |(_, scopes)| scopes.values().any(unseen)).map(|(kind, _)| kind)
    }

    /// Until when releases in this namespace wait, since a watch may not have reported an attached object. Zero if all watches
    /// are healthy, or have failed for too long to wait for them.
    pub fn release_blocked_until(&self, namespace: &str, now: &Now) -> Duration {
        let of_namespace = |scope: &Scope| scope.as_deref().is_none_or(|scope| scope == namespace);
        let watch_health = self.kinds.values().flatten().filter(|(scope, _)| of_namespace(scope));
        watch_health.map(|(_, watch)| watch.release_blocked_until(now)).max().unwrap_or_default()
    }

    /// Kinds whose watches fail, each with one failure, to be reported to users.
    pub fn problems(&self, now: Duration) -> Vec<KindProblem> {
        let trouble = |(kind, scopes): (&KindName, &BTreeMap<Scope, WatchState>)| {
            let failing = scopes.values().find(|watch| watch.reported_at().is_some_and(|at| at <= now))?;
            Some(KindProblem { kind: kind.clone(), failure: failing.failure.clone()? })
        };
        self.kinds.iter().filter_map(trouble).collect()
    }

    /// When [`problems`](Self::problems) change if nothing happens before.
    pub fn problems_change_at(&self, now: Duration) -> Option<Duration> {
        let watch_health = self.kinds.values().flat_map(BTreeMap::values);
        watch_health.filter_map(WatchState::reported_at).filter(|at| *at > now).min()
    }

    /// Each kind and the state of its watches.
    pub fn states(&self) -> impl Iterator<Item = (&KindName, State<'_>)> {
        self.kinds.iter().map(|(kind, scopes)| {
            let state = match scopes.values().find_map(|watch| watch.failure.as_ref()) {
                Some(failure) => State::Failing(failure),
                None if scopes.values().all(|watch| watch.synced) => State::Synced,
                None => State::Unknown,
            };
            (kind, state)
        })
    }
}

/// The state of the watches of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// Not listed yet.
    Unknown,
    /// In sync.
    Synced,
    /// Failing, for this reason.
    Failing(&'a Failure),
}

impl WatchState {
    fn interrupt(&mut self, now: &Now) {
        if self.failure.is_none() {
            self.interruptions.record_failure(now);
            self.interrupted = Some(now.mono);
        }
    }

    fn fail(&mut self, failure: Failure, now: &Now) -> bool {
        self.failures.record_failure(now);
        self.interrupted = None;
        let news = self.failure.as_ref() != Some(&failure);
        self.failure = Some(failure);
        news
    }

    fn recover(&mut self, now: &Now) -> bool {
        let was_silent = self.is_silent(now);
        self.heard = LastEvent(now.mono);
        let was_failing = self.failure.take().is_some();
        if was_failing {
            self.failures.record_recovery(CATCHING_UP, now);
        }
        let interrupted = self.interrupted.take();
        if let Some(since) = interrupted {
            // An API server that opens it fast also delivers missed events fast.
            self.interruptions.record_recovery(now.mono.saturating_sub(since).min(CATCHING_UP), now);
        }
        was_failing || was_silent || interrupted.is_some()
    }

    fn release_blocked_until(&self, now: &Now) -> Duration {
        if self.failure.as_ref().is_some_and(|failure| !failure.is_transient()) && self.interrupted.is_none()
        {
            return Duration::ZERO;
        }
        if self.is_silent(now) {
            return now.mono + RECHECK;
        }
        let failures = self.failures.release_blocked_until(self.failure.is_some(), now);
        failures.max(self.interruptions.release_blocked_until(self.interrupted.is_some(), now))
    }

    fn is_silent(&self, now: &Now) -> bool {
        let open = self.synced && self.failure.is_none() && self.interrupted.is_none();
        open && now.mono.saturating_sub(self.heard.0) > SILENT_AFTER
    }

    fn reported_at(&self) -> Option<Duration> {
        let failure = self.failure.as_ref()?;
        Some(if failure.is_transient() { self.failures.since + REPORT_AFTER } else { self.failures.since })
    }
}

impl FailureWindow {
    /// The watch fails, or is being reopened.
    fn record_failure(&mut self, now: &Now) {
        if self.until.is_none_or(|until| until + PATIENCE <= now.lease) {
            self.since = now.mono;
            self.since_in_lease_time = now.lease;
        }
        self.until = Some(now.lease);
    }

    /// The watch is open again, and has delivered all missed events after `catching_up`.
    fn record_recovery(&mut self, catching_up: Duration, now: &Now) {
        self.until = Some(now.lease);
        self.caught_up_at = now.mono + catching_up;
    }

    fn release_blocked_until(&self, is_failing: bool, now: &Now) -> Duration {
        let patience = (self.since_in_lease_time + PATIENCE).since(now.lease);
        if self.until.is_none() || patience.is_zero() {
            return Duration::ZERO;
        }
        if is_failing { now.mono + patience } else { self.caught_up_at }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// This long after the start, without an outage.
    fn at(secs: u64) -> Now {
        with_lease_time(secs, secs)
    }

    /// This long after the start, and at this lease time.
    fn with_lease_time(mono: u64, lease: u64) -> Now {
        Now {
            mono: seconds(mono),
            lease: LeaseTime::from_duration(seconds(lease)),
            wall: Timestamp::UNIX_EPOCH,
            server: None,
            since_last_response: Duration::ZERO,
            disconnected: false,
        }
    }

    fn transient() -> Failure {
        Failure::Other("503".to_owned())
    }

    fn watch_health() -> (WatchHealth, KindName, Scope) {
        let kind: KindName = "secrets".into();
        (WatchHealth::new([kind.clone()], &[None]), kind, None)
    }

    #[test]
    fn a_kind_that_fails_for_a_moment_blocks_releases_until_it_has_caught_up() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.synced(&kind, &scope, &at(70));
        assert_eq!(watch_health.release_blocked_until("shop", &at(100)), Duration::ZERO);
        watch_health.failing(&kind, &scope, transient(), &at(100));
        assert_eq!(watch_health.release_blocked_until("shop", &at(101)), seconds(130));
        assert!(watch_health.resumed(&kind, &scope, &at(105)));
        assert_eq!(watch_health.release_blocked_until("shop", &at(105)), seconds(108));
    }

    #[test]
    fn a_watch_that_is_reopened_blocks_releases_until_then_and_as_long_again() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.synced(&kind, &scope, &at(0));
        watch_health.interrupted(&kind, &scope, &at(290));
        assert_eq!(watch_health.release_blocked_until("shop", &at(290)), seconds(320));
        assert_eq!(watch_health.problems(seconds(319)), [], "not reported");
        assert!(watch_health.resumed(&kind, &scope, &at(291)));
        assert_eq!(watch_health.release_blocked_until("shop", &at(291)), seconds(292));
        watch_health.interrupted(&kind, &scope, &at(580));
        assert!(watch_health.resumed(&kind, &scope, &at(580)));
        assert_eq!(watch_health.release_blocked_until("shop", &at(580)), seconds(580), "opened at once");
        watch_health.interrupted(&kind, &scope, &at(870));
        watch_health.synced(&kind, &scope, &at(890));
        assert_eq!(watch_health.release_blocked_until("shop", &at(890)), seconds(893), "listed slowly");
    }

    #[test]
    fn only_the_scope_whose_watch_is_reopened_blocks_releases() {
        let scopes = ["shop", "bank"].map(|scope| Some(scope.into()));
        let kind: KindName = "secrets".into();
        let mut watch_health = WatchHealth::new([kind.clone()], &scopes);
        watch_health.interrupted(&kind, &scopes[0], &at(290));
        assert_eq!(watch_health.release_blocked_until("bank", &at(290)), Duration::ZERO);
        assert_eq!(watch_health.release_blocked_until("shop", &at(290)), seconds(320));
    }

    #[test]
    fn a_watch_that_cannot_be_reopened_or_keeps_ending_blocks_releases_for_a_short_time_only() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.interrupted(&kind, &scope, &at(100));
        for failed in [110, 125, 139] {
            watch_health.failing(&kind, &scope, transient(), &at(failed));
            assert_eq!(watch_health.release_blocked_until("shop", &at(failed)), seconds(140));
        }
        watch_health.failing(&kind, &scope, transient(), &at(141));
        assert_eq!(watch_health.release_blocked_until("shop", &at(141)), Duration::ZERO);
        watch_health.resumed(&kind, &scope, &at(142));
        for ended in (200..230).step_by(2) {
            watch_health.interrupted(&kind, &scope, &at(ended));
            watch_health.resumed(&kind, &scope, &at(ended + 1));
        }
        watch_health.interrupted(&kind, &scope, &at(230));
        assert_eq!(watch_health.release_blocked_until("shop", &at(230)), Duration::ZERO);
    }

    #[test]
    fn reopening_a_watch_uses_up_nothing_of_what_a_failure_may_take() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.interrupted(&kind, &scope, &at(100));
        watch_health.resumed(&kind, &scope, &at(101));
        watch_health.failing(&kind, &scope, transient(), &at(120));
        assert_eq!(watch_health.release_blocked_until("shop", &at(120)), seconds(150));
        assert_eq!(watch_health.problems(seconds(124)), []);
    }

    #[test]
    fn after_an_outage_the_watch_of_a_kind_has_its_full_time_to_recover() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.synced(&kind, &scope, &at(0));
        // The API server can't be reached for five minutes, and then answers again.
        watch_health.failing(&kind, &scope, transient(), &at(100));
        watch_health.failing(&kind, &scope, transient(), &with_lease_time(395, 100));
        assert_eq!(watch_health.release_blocked_until("shop", &with_lease_time(401, 101)), seconds(430));
        assert!(watch_health.resumed(&kind, &scope, &with_lease_time(405, 105)));
        assert_eq!(watch_health.release_blocked_until("shop", &with_lease_time(405, 105)), seconds(408));
    }

    #[test]
    fn a_kind_that_fails_for_long_blocks_no_release_even_if_it_recovers_now_and_then() {
        let (mut watch_health, kind, scope) = watch_health();
        for begin in (0..60).step_by(5) {
            watch_health.failing(&kind, &scope, transient(), &at(begin));
            watch_health.resumed(&kind, &scope, &at(begin + 1));
        }
        assert_eq!(watch_health.release_blocked_until("shop", &at(60)), Duration::ZERO);
    }

    #[test]
    fn a_kind_that_is_not_installed_or_not_permitted_blocks_no_release() {
        let (mut watch_health, kind, _) = watch_health();
        for failure in [Failure::NoSuchKind, Failure::Forbidden("no".to_owned())] {
            watch_health.unknown(&kind, &failure, &at(1));
            assert_eq!(watch_health.release_blocked_until("shop", &at(1)), Duration::ZERO);
            assert_eq!(watch_health.unseen().count(), 0, "readiness doesn't wait for it");
        }
        assert_eq!(watch_health.release_blocked_until("shop", &at(1)), Duration::ZERO);
    }

    #[test]
    fn a_kind_that_is_installed_blocks_releases_until_it_was_listed_and_for_thirty_seconds_at_most() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.unknown(&kind, &Failure::NoSuchKind, &at(1));
        watch_health.found(&kind, &at(100));
        assert_eq!(watch_health.release_blocked_until("shop", &at(101)), seconds(130));
        watch_health.synced(&kind, &scope, &at(102));
        assert_eq!(watch_health.release_blocked_until("shop", &at(102)), seconds(104), "it catches up");
        // It is uninstalled and found again and again, and never listed.
        for found in (200..240).step_by(5) {
            watch_health.failing(&kind, &scope, Failure::NoSuchKind, &at(found - 1));
            assert_eq!(watch_health.release_blocked_until("shop", &at(found - 1)), Duration::ZERO);
            watch_health.found(&kind, &at(found));
        }
        assert_eq!(watch_health.release_blocked_until("shop", &at(236)), Duration::ZERO);
    }

    #[test]
    fn a_watch_that_reports_not_even_bookmarks_blocks_releases_until_it_is_reopened() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.synced(&kind, &scope, &at(0));
        assert!(!watch_health.heard(&kind, &scope, &at(60)), "a bookmark");
        assert_eq!(watch_health.release_blocked_until("shop", &at(135)), Duration::ZERO);
        assert_eq!(watch_health.release_blocked_until("shop", &at(136)), seconds(137));
        assert!(watch_health.heard(&kind, &scope, &at(137)), "an event that was late");
        assert_eq!(watch_health.release_blocked_until("shop", &at(137)), Duration::ZERO);
        // The runtime opens it again.
        watch_health.interrupted(&kind, &scope, &at(227));
        assert!(watch_health.resumed(&kind, &scope, &at(228)));
        assert_eq!(watch_health.release_blocked_until("shop", &at(228)), seconds(229));
        // It can't be opened again.
        watch_health.interrupted(&kind, &scope, &at(318));
        assert_eq!(watch_health.release_blocked_until("shop", &at(347)), seconds(348));
        assert_eq!(watch_health.release_blocked_until("shop", &at(349)), Duration::ZERO);
    }

    #[test]
    fn permanent_failures_are_reported_at_once_and_transient_ones_after_a_while() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.failing(&kind, &scope, transient(), &at(10));
        assert_eq!(watch_health.problems(seconds(10)), []);
        assert_eq!(watch_health.problems_change_at(seconds(10)), Some(seconds(15)));
        assert_eq!(watch_health.problems(seconds(15)).len(), 1);
        watch_health.failing(&kind, &scope, Failure::Forbidden("no".to_owned()), &at(16));
        let failure = Failure::Forbidden("no".to_owned());
        assert_eq!(watch_health.problems(seconds(16)), [KindProblem { kind: kind.clone(), failure }]);
        watch_health.synced(&kind, &scope, &at(17));
        assert_eq!(watch_health.problems(seconds(17)), []);
    }
}
