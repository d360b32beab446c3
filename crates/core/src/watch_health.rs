//! What a replica can see of each attachable kind: whether its watches show everything, and since when they don't.
//!
//! An object that no watch shows may be attached to a lease that ends, so a kind that can't be seen for a moment holds up
//! releases. One that can't be seen for long doesn't: no kind delays the others for ever.

use std::{collections::BTreeMap, time::Duration};

use lease_engine::LeaseTime;

use crate::{clocks::Now, kind::KindName, observation::Failure};

pub use crate::observation::Scope;

/// For this long, a failing watch holds up the release of leases: what it doesn't show might be attached. In lease time: what
/// fails since the API server can't be reached at all delays nothing that could go on without it.
const PATIENCE: Duration = Duration::from_secs(30);
/// A watch that is open again may take this long to show what it has missed; one that was ended in good order, as long as it
/// took to be opened again, and no longer than this.
const CATCHING_UP: Duration = Duration::from_secs(3);
/// A failure that may pass by itself is told to people when it has lasted this long.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// Everything that is known of how kinds are seen.
#[derive(Clone, Debug, Hash, Default)]
pub struct WatchHealth {
    kinds: BTreeMap<KindName, BTreeMap<Scope, WatchState>>,
}

/// How one watch does.
#[derive(Clone, Debug, Hash, Default)]
struct WatchState {
    /// Whether everything has been shown once.
    synced: bool,
    /// How it fails at present.
    failure: Option<Failure>,
    /// Since when it is being opened again, after it had ended in good order.
    interrupted: Option<Duration>,
    failures: FailureWindow,
    /// Apart from failures: each watch is opened again every few minutes, and that must not use up what a failure may take.
    interruptions: FailureWindow,
}

/// A time in which a watch shows nothing again and again, short recoveries not counted.
#[derive(Clone, Debug, Hash, Default)]
struct FailureWindow {
    /// When it began.
    since: Duration,
    /// The same, in lease time.
    patient_since: LeaseTime,
    /// When the watch showed nothing last.
    until: Option<LeaseTime>,
    /// When all that it missed should have been shown.
    caught_up_at: Duration,
}

/// What keeps a kind from being seen, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindProblem {
    /// The kind.
    pub kind: KindName,
    /// In which way.
    pub failure: Failure,
}

impl WatchHealth {
    /// Nothing has been seen yet of these kinds in these scopes.
    pub fn new(kinds: impl IntoIterator<Item = KindName>, scopes: &[Scope]) -> Self {
        let unseen = || scopes.iter().map(|scope| (scope.clone(), WatchState::default())).collect();
        Self { kinds: kinds.into_iter().map(|kind| (kind, unseen())).collect() }
    }

    /// All objects of a kind in a scope have been shown.
    pub fn synced(&mut self, kind: &KindName, scope: &Scope, now: &Now) {
        let watch = self.watch(kind, scope);
        watch.synced = true;
        watch.recover(now);
    }

    /// A watch has ended in good order, and is being opened again.
    pub fn interrupted(&mut self, kind: &KindName, scope: &Scope, now: &Now) {
        self.watch(kind, scope).interrupt(now);
    }

    /// A watch that had broken or ended goes on where it was. Answers whether it showed nothing meanwhile.
    pub fn resumed(&mut self, kind: &KindName, scope: &Scope, now: &Now) -> bool {
        self.watch(kind, scope).recover(now)
    }

    /// A watch fails. Answers whether that is news.
    pub fn failing(&mut self, kind: &KindName, scope: &Scope, failure: Failure, now: &Now) -> bool {
        self.watch(kind, scope).fail(failure, now)
    }

    /// A kind can't even be discovered. Answers whether that is news.
    pub fn unknown(&mut self, kind: &KindName, failure: &Failure, now: &Now) -> bool {
        let scopes = self.kinds.entry(kind.clone()).or_default();
        scopes.values_mut().filter_map(|watch| watch.fail(failure.clone(), now).then_some(())).count() > 0
    }

    fn watch(&mut self, kind: &KindName, scope: &Scope) -> &mut WatchState {
        self.kinds.entry(kind.clone()).or_default().entry(scope.clone()).or_default()
    }

    /// Kinds of which nothing is known yet, not even that they can't be seen.
    pub fn unseen(&self) -> impl Iterator<Item = &KindName> {
        let unseen =
            |watch: &WatchState| !watch.synced && watch.failure.is_none() && watch.failures.until.is_none();
        self.kinds.iter().filter(move |(_, scopes)| scopes.values().any(unseen)).map(|(kind, _)| kind)
    }

    /// Until when something may be attached in this namespace that no watch has shown; zero if all is seen, or if it
    /// takes too long to wait for.
    pub fn release_blocked_until(&self, namespace: &str, now: &Now) -> Duration {
        let of_namespace = |scope: &Scope| scope.as_deref().is_none_or(|scope| scope == namespace);
        let watch_health = self.kinds.values().flatten().filter(|(scope, _)| of_namespace(scope));
        watch_health.map(|(_, watch)| watch.release_blocked_until(now)).max().unwrap_or_default()
    }

    /// What people should know: kinds that can't be seen, each with one failure.
    pub fn problems(&self, now: Duration) -> Vec<KindProblem> {
        let trouble = |(kind, scopes): (&KindName, &BTreeMap<Scope, WatchState>)| {
            let failing = scopes.values().find(|watch| watch.told_at().is_some_and(|at| at <= now))?;
            Some(KindProblem { kind: kind.clone(), failure: failing.failure.clone()? })
        };
        self.kinds.iter().filter_map(trouble).collect()
    }

    /// When [`problems`](Self::problems) change if nothing happens before.
    pub fn problems_change_at(&self, now: Duration) -> Option<Duration> {
        let watch_health = self.kinds.values().flat_map(BTreeMap::values);
        watch_health.filter_map(WatchState::told_at).filter(|at| *at > now).min()
    }

    /// Each kind, and how it fails at present if it does.
    pub fn states(&self) -> impl Iterator<Item = (&KindName, State<'_>)> {
        self.kinds.iter().map(|(kind, scopes)| {
            let state = match scopes.values().find_map(|watch| watch.failure.as_ref()) {
                Some(failure) => State::Failing(failure),
                None if scopes.values().all(|watch| watch.synced) => State::Event,
                None => State::Unseen,
            };
            (kind, state)
        })
    }
}

/// How a kind is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// Not yet.
    Unseen,
    /// Wholly.
    Event,
    /// Not wholly, for this reason.
    Failing(&'a Failure),
}

impl WatchState {
    fn interrupt(&mut self, now: &Now) {
        if self.failure.is_none() {
            self.interruptions.go_on(now);
            self.interrupted = Some(now.mono);
        }
    }

    fn fail(&mut self, failure: Failure, now: &Now) -> bool {
        self.failures.go_on(now);
        self.interrupted = None;
        let news = self.failure.as_ref() != Some(&failure);
        self.failure = Some(failure);
        news
    }

    fn recover(&mut self, now: &Now) -> bool {
        let was_failing = self.failure.take().is_some();
        if was_failing {
            self.failures.pause(CATCHING_UP, now);
        }
        let interrupted = self.interrupted.take();
        if let Some(since) = interrupted {
            // A server that was quick to open it is as quick to show what was missed.
            self.interruptions.pause(now.mono.saturating_sub(since).min(CATCHING_UP), now);
        }
        was_failing || interrupted.is_some()
    }

    fn release_blocked_until(&self, now: &Now) -> Duration {
        if self.failure.as_ref().is_some_and(|failure| !failure.is_transient()) {
            return Duration::ZERO;
        }
        let failures = self.failures.release_blocked_until(self.failure.is_some(), now);
        failures.max(self.interruptions.release_blocked_until(self.interrupted.is_some(), now))
    }

    fn told_at(&self) -> Option<Duration> {
        let failure = self.failure.as_ref()?;
        Some(if failure.is_transient() { self.failures.since + TELL_AFTER } else { self.failures.since })
    }
}

impl FailureWindow {
    /// The watch shows nothing.
    fn go_on(&mut self, now: &Now) {
        if self.until.is_none_or(|until| until + PATIENCE <= now.lease) {
            self.since = now.mono;
            self.patient_since = now.lease;
        }
        self.until = Some(now.lease);
    }

    /// It shows something again, and in so long all that it missed.
    fn pause(&mut self, catching_up: Duration, now: &Now) {
        self.until = Some(now.lease);
        self.caught_up_at = now.mono + catching_up;
    }

    fn release_blocked_until(&self, shows_nothing: bool, now: &Now) -> Duration {
        let patience = (self.patient_since + PATIENCE).since(now.lease);
        if self.until.is_none() || patience.is_zero() {
            return Duration::ZERO;
        }
        if shows_nothing { now.mono + patience } else { self.caught_up_at }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// This long after the start, while the API server was always heard.
    fn at(secs: u64) -> Now {
        heard(secs, secs)
    }

    /// This long after the start, and at this lease time.
    fn heard(mono: u64, lease: u64) -> Now {
        Now {
            mono: seconds(mono),
            lease: LeaseTime::from_duration(seconds(lease)),
            wall: Timestamp::UNIX_EPOCH,
            server: None,
            since_last_response: Duration::ZERO,
            disconnected: false,
            paused_unwritable: Duration::ZERO,
            doubted: Duration::ZERO,
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
    fn a_kind_that_fails_for_a_moment_holds_up_releases_until_it_has_caught_up() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.synced(&kind, &scope, &at(0));
        assert_eq!(watch_health.release_blocked_until("shop", &at(100)), Duration::ZERO);
        watch_health.failing(&kind, &scope, transient(), &at(100));
        assert_eq!(watch_health.release_blocked_until("shop", &at(101)), seconds(130));
        assert!(watch_health.resumed(&kind, &scope, &at(105)));
        assert_eq!(watch_health.release_blocked_until("shop", &at(105)), seconds(108));
    }

    #[test]
    fn a_watch_that_is_opened_again_holds_up_releases_until_then_and_as_long_again() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.synced(&kind, &scope, &at(0));
        watch_health.interrupted(&kind, &scope, &at(290));
        assert_eq!(watch_health.release_blocked_until("shop", &at(290)), seconds(320));
        assert_eq!(watch_health.problems(seconds(319)), [], "people needn't know");
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
    fn only_the_scope_whose_watch_is_opened_again_holds_up_releases() {
        let scopes = ["shop", "bank"].map(|scope| Some(scope.into()));
        let kind: KindName = "secrets".into();
        let mut watch_health = WatchHealth::new([kind.clone()], &scopes);
        watch_health.interrupted(&kind, &scopes[0], &at(290));
        assert_eq!(watch_health.release_blocked_until("bank", &at(290)), Duration::ZERO);
        assert_eq!(watch_health.release_blocked_until("shop", &at(290)), seconds(320));
    }

    #[test]
    fn a_watch_that_cannot_be_opened_again_or_ends_all_the_time_holds_up_nothing_for_long() {
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
    fn a_watch_that_is_opened_again_uses_up_nothing_of_what_a_failure_may_take() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.interrupted(&kind, &scope, &at(100));
        watch_health.resumed(&kind, &scope, &at(101));
        watch_health.failing(&kind, &scope, transient(), &at(120));
        assert_eq!(watch_health.release_blocked_until("shop", &at(120)), seconds(150));
        assert_eq!(watch_health.problems(seconds(124)), []);
    }

    #[test]
    fn after_an_outage_a_kind_has_all_the_time_to_be_seen_again() {
        let (mut watch_health, kind, scope) = watch_health();
        watch_health.synced(&kind, &scope, &at(0));
        // The API server can't be reached for five minutes, and is heard again.
        watch_health.failing(&kind, &scope, transient(), &at(100));
        watch_health.failing(&kind, &scope, transient(), &heard(395, 100));
        assert_eq!(watch_health.release_blocked_until("shop", &heard(401, 101)), seconds(430));
        assert!(watch_health.resumed(&kind, &scope, &heard(405, 105)));
        assert_eq!(watch_health.release_blocked_until("shop", &heard(405, 105)), seconds(408));
    }

    #[test]
    fn a_kind_that_fails_for_long_holds_up_nothing_even_if_it_recovers_now_and_then() {
        let (mut watch_health, kind, scope) = watch_health();
        for begin in (0..60).step_by(5) {
            watch_health.failing(&kind, &scope, transient(), &at(begin));
            watch_health.resumed(&kind, &scope, &at(begin + 1));
        }
        assert_eq!(watch_health.release_blocked_until("shop", &at(60)), Duration::ZERO);
    }

    #[test]
    fn a_kind_that_somebody_has_to_install_or_permit_holds_up_nothing() {
        let (mut watch_health, kind, _) = watch_health();
        for failure in [Failure::NoSuchKind, Failure::Forbidden("no".to_owned())] {
            watch_health.unknown(&kind, &failure, &at(1));
            assert_eq!(watch_health.release_blocked_until("shop", &at(1)), Duration::ZERO);
            assert_eq!(watch_health.unseen().count(), 0, "readiness doesn't wait for it");
        }
        assert_eq!(watch_health.release_blocked_until("shop", &at(1)), Duration::ZERO);
    }

    #[test]
    fn people_hear_at_once_of_what_they_must_mend_and_later_of_what_may_pass() {
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
