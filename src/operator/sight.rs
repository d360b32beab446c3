//! What a replica can see of each attachable kind: whether its watches show everything, and since when they don't.
//!
//! An object that no watch shows may be attached to a lease that ends, so a kind that can't be seen for a moment holds up
//! releases. One that can't be seen for long doesn't: no kind delays the others for ever.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{kinds::KindName, watches::Failure};

/// For this long, a failing watch holds up the release of leases: what it doesn't show might be attached.
const PATIENCE: Duration = Duration::from_secs(30);
/// A watch that is open again may take this long to show what it has missed.
const CATCHING_UP: Duration = Duration::from_secs(3);
/// A failure that may pass by itself is told to people when it has lasted this long.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// Where something is watched: a namespace, or all of them.
pub type Scope = Option<Arc<str>>;

/// Everything that is known of how kinds are seen.
#[derive(Debug, Default)]
pub struct Sights {
    kinds: BTreeMap<KindName, BTreeMap<Scope, Sight>>,
}

/// How one watch does.
#[derive(Debug, Default)]
struct Sight {
    /// Whether everything has been shown once.
    synced: bool,
    /// How it fails at present.
    failure: Option<Failure>,
    /// Since when it fails, short recoveries not counted.
    failing_since: Duration,
    /// Until when it was failing last.
    failing_until: Option<Duration>,
}

/// What keeps a kind from being seen, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kind.
    pub kind: KindName,
    /// In which way.
    pub failure: Failure,
}

impl Sights {
    /// Nothing has been seen yet of these kinds in these scopes.
    pub fn new(kinds: impl IntoIterator<Item = KindName>, scopes: &[Scope]) -> Self {
        let unseen = || scopes.iter().map(|scope| (scope.clone(), Sight::default())).collect();
        Self { kinds: kinds.into_iter().map(|kind| (kind, unseen())).collect() }
    }

    /// All objects of a kind in a scope have been shown.
    pub fn synced(&mut self, kind: &KindName, scope: &Scope, now: Duration) {
        let sight = self.sight(kind, scope);
        sight.synced = true;
        sight.recover(now);
    }

    /// A watch that had broken goes on where it was. Answers whether it was failing.
    pub fn resumed(&mut self, kind: &KindName, scope: &Scope, now: Duration) -> bool {
        self.sight(kind, scope).recover(now)
    }

    /// A watch fails. Answers whether that is news.
    pub fn failing(&mut self, kind: &KindName, scope: &Scope, failure: Failure, now: Duration) -> bool {
        self.sight(kind, scope).fail(failure, now)
    }

    /// A kind can't even be discovered. Answers whether that is news.
    pub fn unknown(&mut self, kind: &KindName, failure: &Failure, now: Duration) -> bool {
        let scopes = self.kinds.entry(kind.clone()).or_default();
        scopes.values_mut().filter_map(|sight| sight.fail(failure.clone(), now).then_some(())).count() > 0
    }

    fn sight(&mut self, kind: &KindName, scope: &Scope) -> &mut Sight {
        self.kinds.entry(kind.clone()).or_default().entry(scope.clone()).or_default()
    }

    /// Kinds of which nothing is known yet, not even that they can't be seen.
    pub fn unseen(&self) -> impl Iterator<Item = &KindName> {
        let unseen =
            |sight: &Sight| !sight.synced && sight.failure.is_none() && sight.failing_until.is_none();
        self.kinds.iter().filter(move |(_, scopes)| scopes.values().any(unseen)).map(|(kind, _)| kind)
    }

    /// Until when something may be attached in this namespace that no watch has shown; zero if all is seen, or if it
    /// takes too long to wait for.
    pub fn blind_until(&self, namespace: &str, now: Duration) -> Duration {
        let of_namespace = |scope: &Scope| scope.as_deref().is_none_or(|scope| scope == namespace);
        let sights = self.kinds.values().flatten().filter(|(scope, _)| of_namespace(scope));
        sights.map(|(_, sight)| sight.blind_until(now)).max().unwrap_or_default()
    }

    /// What people should know: kinds that can't be seen, each with one failure.
    pub fn troubles(&self, now: Duration) -> Vec<Trouble> {
        let trouble = |(kind, scopes): (&KindName, &BTreeMap<Scope, Sight>)| {
            let failing = scopes.values().find(|sight| sight.told_at().is_some_and(|at| at <= now))?;
            Some(Trouble { kind: kind.clone(), failure: failing.failure.clone()? })
        };
        self.kinds.iter().filter_map(trouble).collect()
    }

    /// When [`troubles`](Self::troubles) change if nothing happens before.
    pub fn troubles_change_at(&self, now: Duration) -> Option<Duration> {
        let sights = self.kinds.values().flat_map(BTreeMap::values);
        sights.filter_map(Sight::told_at).filter(|at| *at > now).min()
    }

    /// Each kind, and how it fails at present if it does.
    pub fn states(&self) -> impl Iterator<Item = (&KindName, State<'_>)> {
        self.kinds.iter().map(|(kind, scopes)| {
            let state = match scopes.values().find_map(|sight| sight.failure.as_ref()) {
                Some(failure) => State::Failing(failure),
                None if scopes.values().all(|sight| sight.synced) => State::Seen,
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
    Seen,
    /// Not wholly, for this reason.
    Failing(&'a Failure),
}

impl Sight {
    fn fail(&mut self, failure: Failure, now: Duration) -> bool {
        if self.failing_until.is_none_or(|until| until + PATIENCE <= now) {
            self.failing_since = now;
        }
        self.failing_until = Some(now);
        let news = self.failure.as_ref() != Some(&failure);
        self.failure = Some(failure);
        news
    }

    fn recover(&mut self, now: Duration) -> bool {
        let was_failing = self.failure.take().is_some();
        if was_failing {
            self.failing_until = Some(now);
        }
        was_failing
    }

    fn blind_until(&self, now: Duration) -> Duration {
        let patient_until = self.failing_since + PATIENCE;
        match (&self.failure, self.failing_until) {
            (Some(failure), _) if !failure.is_transient() => Duration::ZERO,
            (Some(_), _) if now < patient_until => patient_until,
            (None, Some(until)) if now < patient_until => until + CATCHING_UP,
            _ => Duration::ZERO,
        }
    }

    fn told_at(&self) -> Option<Duration> {
        let failure = self.failure.as_ref()?;
        Some(if failure.is_transient() { self.failing_since + TELL_AFTER } else { self.failing_since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn transient() -> Failure {
        Failure::Other("503".to_owned())
    }

    fn sights() -> (Sights, KindName, Scope) {
        let kind: KindName = "secrets".into();
        (Sights::new([kind.clone()], &[None]), kind, None)
    }

    #[test]
    fn a_kind_that_fails_for_a_moment_holds_up_releases_until_it_has_caught_up() {
        let (mut sights, kind, scope) = sights();
        sights.synced(&kind, &scope, seconds(0));
        assert_eq!(sights.blind_until("shop", seconds(100)), Duration::ZERO);
        sights.failing(&kind, &scope, transient(), seconds(100));
        assert_eq!(sights.blind_until("shop", seconds(101)), seconds(130));
        assert!(sights.resumed(&kind, &scope, seconds(105)));
        assert_eq!(sights.blind_until("shop", seconds(105)), seconds(108));
    }

    #[test]
    fn a_kind_that_fails_for_long_holds_up_nothing_even_if_it_recovers_now_and_then() {
        let (mut sights, kind, scope) = sights();
        for at in (0..60).step_by(5) {
            sights.failing(&kind, &scope, transient(), seconds(at));
            sights.resumed(&kind, &scope, seconds(at + 1));
        }
        assert_eq!(sights.blind_until("shop", seconds(60)), Duration::ZERO);
    }

    #[test]
    fn a_kind_that_somebody_has_to_install_or_permit_holds_up_nothing() {
        let (mut sights, kind, _) = sights();
        for failure in [Failure::NoSuchKind, Failure::Forbidden("no".to_owned())] {
            sights.unknown(&kind, &failure, seconds(1));
            assert_eq!(sights.blind_until("shop", seconds(1)), Duration::ZERO);
            assert_eq!(sights.unseen().count(), 0, "readiness doesn't wait for it");
        }
        assert_eq!(sights.blind_until("shop", seconds(1)), Duration::ZERO);
    }

    #[test]
    fn people_hear_at_once_of_what_they_must_mend_and_later_of_what_may_pass() {
        let (mut sights, kind, scope) = sights();
        sights.failing(&kind, &scope, transient(), seconds(10));
        assert_eq!(sights.troubles(seconds(10)), []);
        assert_eq!(sights.troubles_change_at(seconds(10)), Some(seconds(15)));
        assert_eq!(sights.troubles(seconds(15)).len(), 1);
        sights.failing(&kind, &scope, Failure::Forbidden("no".to_owned()), seconds(16));
        let failure = Failure::Forbidden("no".to_owned());
        assert_eq!(sights.troubles(seconds(16)), [Trouble { kind: kind.clone(), failure }]);
        sights.synced(&kind, &scope, seconds(17));
        assert_eq!(sights.troubles(seconds(17)), []);
    }
}
