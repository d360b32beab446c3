//! Sources and their followers: which lease follows which source, and what is known of each source.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lease_engine::LeaseTime;
use lessor_api::lease::following;
use uuid::Uuid;

use super::{
    follow_state::{FollowState, Origin, Previous, Transition, TtlChange, TtlState},
    source::{Follow, Source, SourceKind},
    source_state::{SourceState, SourceStatus},
    source_watches::{SourceWatch, SourceWatches},
};
use crate::{
    listed_keys::ListedKeys,
    metadata::{NamespacedName, ResourceVersion},
};

/// So many leases may follow one another, each the next. A heartbeat at one end of a chain renews all of them.
const LONGEST_CHAIN: usize = 16;

/// How a lease that is followed stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Not all leases have been seen: it may be there.
    Unknown,
    /// There is none of its name, or it isn't granted yet.
    Missing,
    /// It has ended.
    Ended,
    /// Its time runs.
    Runs,
    /// Its time stands still: it is suspended, or kept alive itself.
    StandsStill,
}

#[derive(Clone, Debug, Hash)]
struct Follower {
    name: NamespacedName,
    follow: Follow,
    /// The uid that the Pod must have: as asked for, as recorded, or as first seen.
    pin: Option<Uuid>,
    /// Until something is known of its source.
    origin: Option<Origin>,
    view: FollowState,
    /// Whether its source was seen lost since it was last seen alive: what that ended is over, whatever can't be seen meanwhile.
    lost: bool,
}

impl Follower {
    /// Whether the loss of its source has ended its time, even if the source can't be seen any more.
    fn is_cut(&self) -> bool {
        self.follow.ends_on_loss && self.lost
    }
}

#[derive(Clone, Debug, Default, Hash)]
struct State {
    followers: BTreeSet<Uuid>,
    known: Known,
    /// Whether it is a Pod that should have ended long ago, and still terminates.
    overdue: bool,
    /// Why it can't be seen, if it can't be.
    unseen: Option<&'static str>,
    /// The last heartbeat: at which lease time it was observed, and how old it was then.
    heartbeat: Option<(LeaseTime, Duration)>,
    /// When it was last read, as asked for and as answered, on the replica's clock: lease time may come to the same point twice.
    read: Option<(Duration, Duration)>,
    /// Until when that will do, however old it is, since it is being read again.
    read_again_by: Duration,
}

#[derive(Clone, Debug, Default, Hash)]
enum Known {
    #[default]
    Unknown,
    Absent,
    There(ResourceVersion, SourceStatus),
}

impl Known {
    fn status(&self) -> Option<&SourceStatus> {
        match self {
            Self::There(_, status) => Some(status),
            _ => None,
        }
    }
}

/// What a change of a lease changed about what it follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// It follows another source than before, or none any more.
    pub source: bool,
    /// Its time may have been cut short by the loss of a Pod that ends it no more.
    pub cut: bool,
}

/// Of one kind: how many sources are followed, and how many leases follow them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerCount {
    /// The kind.
    pub kind: SourceKind,
    /// Sources.
    pub sources: usize,
    /// Followers that are kept alive.
    pub alive: usize,
    /// Followers of what can't be seen, since the operator lacks a right or wasn't told to look.
    pub unseen: usize,
    /// All other followers: their time runs.
    pub other: usize,
}

/// All sources that are followed, and who follows them. Sources without followers are dropped.
#[derive(Clone, Debug)]
pub struct SourceIndex {
    enabled: BTreeSet<SourceKind>,
    sources: HashMap<Source, State>,
    leases: HashMap<Uuid, Follower>,
    by_name: HashMap<NamespacedName, Uuid>,
    /// How many sources there are of a kind (with `None`), and of it in each namespace.
    counts: BTreeMap<(SourceKind, Option<Arc<str>>), usize>,
    source_watches: SourceWatches,
    watched: BTreeSet<SourceWatch>,
    synced: HashSet<SourceWatch>,
    /// Whether what is watched may no longer be what has to be.
    dirty: bool,
    /// Sources that no watch will show by itself.
    unread: Vec<Source>,
    /// Pods that terminate, and from when on they are overdue by the API server's clock.
    terminating: BTreeSet<(Timestamp, Source)>,
}

impl SourceIndex {
    /// An index without followers. Sources of these kinds may be looked at, in all namespaces at once or not.
    pub fn new(enabled: impl IntoIterator<Item = SourceKind>, everywhere: bool) -> Self {
        Self {
            enabled: enabled.into_iter().collect(),
            sources: HashMap::new(),
            leases: HashMap::new(),
            by_name: HashMap::new(),
            counts: BTreeMap::new(),
            source_watches: SourceWatches::new(everywhere),
            watched: BTreeSet::new(),
            synced: HashSet::new(),
            dirty: false,
            unread: Vec::new(),
            terminating: BTreeSet::new(),
        }
    }

    /// Whether no lease follows anything.
    pub fn is_idle(&self) -> bool {
        self.leases.is_empty()
    }

    fn is_enabled(&self, kind: SourceKind) -> bool {
        kind == SourceKind::Lease || self.enabled.contains(&kind)
    }

    /// Feeds all that is known, in one order.
    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        BTreeMap::from_iter(&self.sources).hash(state);
        BTreeMap::from_iter(&self.leases).hash(state);
        BTreeSet::from_iter(&self.synced).hash(state);
        (&self.source_watches, &self.watched, self.dirty, &self.unread, &self.terminating).hash(state);
    }

    // --- Who follows what ----------------------------------------------------------------------------------------

    /// Takes in what a lease follows. `recorded` is the uid that its status names for this source; `restored` says, of a
    /// lease that was granted before this replica ran, whether its status says that its source was alive, if it says that.
    pub fn link(
        &mut self,
        uid: Uuid,
        name: &NamespacedName,
        follow: Option<&Follow>,
        recorded: Option<Uuid>,
        restored: Option<Option<bool>>,
    ) -> Change {
        let Some(follow) = follow else { return self.unlink(uid) };
        if let Some(known) = self.leases.get_mut(&uid)
            && known.follow.source == follow.source
        {
            let cut = known.is_cut() && !follow.ends_on_loss;
            known.pin = follow.uid.or(recorded).or(known.pin);
            known.follow.uid = follow.uid;
            known.follow.ends_on_loss = follow.ends_on_loss;
            return Change { source: false, cut };
        }
        let cut = self.unlink(uid).cut;
        if let Some(before) = self.by_name.get(name).copied() {
            // One of its name, whose end was not observed.
            self.unlink(before);
        }
        let origin = restored.map_or(Origin::Fresh, |was_alive| Origin::Restored { was_alive });
        let follower = Follower {
            name: name.clone(),
            follow: follow.clone(),
            pin: follow.uid.or(recorded),
            origin: Some(origin),
            view: FollowState::Unknown,
            lost: false,
        };
        self.leases.insert(uid, follower);
        self.by_name.insert(name.clone(), uid);
        if !self.sources.contains_key(&follow.source) {
            self.add_source(&follow.source);
        }
        self.sources.entry(follow.source.clone()).or_default().followers.insert(uid);
        Change { source: true, cut }
    }

    /// Takes in that a lease was granted: what its source does to its time it does from now on.
    pub fn granted(&mut self, uid: Uuid) {
        if let Some(follower) = self.leases.get_mut(&uid) {
            follower.view = FollowState::Unknown;
            follower.lost = false;
            follower.origin = Some(Origin::Fresh);
        }
    }

    /// Takes in that a lease follows nothing any more, or is over.
    pub fn unlink(&mut self, uid: Uuid) -> Change {
        let Some(follower) = self.leases.remove(&uid) else { return Change::default() };
        if self.by_name.get(&follower.name) == Some(&uid) {
            self.by_name.remove(&follower.name);
        }
        let cut = follower.is_cut();
        let source = follower.follow.source;
        if let Some(state) = self.sources.get_mut(&source) {
            state.followers.remove(&uid);
            if state.followers.is_empty() {
                self.sources.remove(&source);
                self.remove_source(&source);
            }
        }
        Change { source: true, cut }
    }

    fn count(&mut self, source: &Source) -> [(SourceKind, Option<Arc<str>>); 2] {
        [(source.kind, None), (source.kind, Some(source.name.namespace.clone()))]
    }

    fn add_source(&mut self, source: &Source) {
        for key in self.count(source) {
            *self.counts.entry(key).or_default() += 1;
        }
        match self.watch_of(source) {
            Some(source_watch) if self.synced.contains(source_watch) => self.unread.push(source.clone()),
            // What is being listed shows it, or says afterwards what it didn't.
            Some(_) => {}
            None => self.dirty = true,
        }
    }

    fn remove_source(&mut self, source: &Source) {
        for key in self.count(source) {
            if let Some(count) = self.counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&key);
                    self.dirty = true;
                }
            }
        }
        self.dirty |= self.watch_of(source).is_some_and(|source_watch| source_watch.name.is_some());
    }

    /// The leases that follow this, in one order.
    pub fn followers(&self, source: &Source) -> Vec<Uuid> {
        self.sources.get(source).into_iter().flat_map(|state| state.followers.iter().copied()).collect()
    }

    /// Whether a lease follows this.
    pub fn is_followed(&self, source: &Source) -> bool {
        self.sources.contains_key(source)
    }

    /// What a lease follows.
    pub fn source_of(&self, uid: Uuid) -> Option<&Source> {
        Some(&self.leases.get(&uid)?.follow.source)
    }

    /// Where a follower is.
    pub fn name_of(&self, uid: Uuid) -> Option<&NamespacedName> {
        Some(&self.leases.get(&uid)?.name)
    }

    /// The uid of the Pod that a lease follows.
    pub fn pod_uid_of(&self, uid: Uuid) -> Option<Uuid> {
        self.leases.get(&uid)?.pin
    }

    /// How it stood between a lease and its source when it was last [settled](Self::settle).
    pub fn state_of(&self, uid: Uuid) -> Option<FollowState> {
        Some(self.leases.get(&uid)?.view)
    }

    /// Every follower that follows one of our own leases, in one order.
    pub fn followers_of_leases(&self) -> Vec<Uuid> {
        let of_leases = |(_, follower): &(&Uuid, &Follower)| follower.follow.source.kind == SourceKind::Lease;
        let mut followers: Vec<Uuid> = self.leases.iter().filter(of_leases).map(|(uid, _)| *uid).collect();
        followers.sort_unstable();
        followers
    }

    /// This lease, those that follow it, those that follow these, and so on: all for which it may matter what it follows.
    pub fn affected(&self, uid: Uuid, name: &NamespacedName) -> Vec<Uuid> {
        let (mut affected, mut seen) = (vec![uid], HashSet::from([uid]));
        let mut by_name = vec![name.clone()];
        while let Some(name) = by_name.pop() {
            for follower in self.followers(&Source::lease(name)) {
                if seen.insert(follower) {
                    affected.push(follower);
                    by_name.extend(self.name_of(follower).cloned());
                }
            }
        }
        affected
    }

    /// What is followed, and by how many, of each kind of source.
    pub fn counts(&self) -> [FollowerCount; 4] {
        let mut tallies = SourceKind::ALL.map(|kind| {
            let sources = self.counts.get(&(kind, None)).copied().unwrap_or_default();
            FollowerCount { kind, sources, alive: 0, unseen: 0, other: 0 }
        });
        for follower in self.leases.values() {
            let kind = follower.follow.source.kind;
            for tally in tallies.iter_mut().filter(|tally| tally.kind == kind) {
                *match follower.view {
                    FollowState::Alive { .. } => &mut tally.alive,
                    FollowState::Unseen(_) => &mut tally.unseen,
                    FollowState::Unknown | FollowState::Lost(_) | FollowState::Refused(_) => &mut tally.other,
                } += 1;
            }
        }
        tallies
    }

    // --- What is seen --------------------------------------------------------------------------------------------

    /// Takes in the observed state of a source; `None`: it doesn't exist. Returns whether it has changed and, if it shows a heartbeat,
    /// how long ago that was.
    ///
    /// A heartbeat that follows an earlier observation counts from now. For the first observation of a source, the
    /// API server's record says when it was; `slack` is what that leaves open.
    pub fn observe(
        &mut self,
        source: &Source,
        source_state: Option<SourceState>,
        lease: LeaseTime,
        server: Option<Timestamp>,
        slack: Duration,
    ) -> (bool, Option<Duration>) {
        let Some(state) = self.sources.get_mut(source) else { return (false, None) };
        let Some(SourceState { version, status, .. }) = source_state else {
            let changed = !matches!(state.known, Known::Absent);
            state.known = Known::Absent;
            state.overdue = false;
            return (changed, None);
        };
        if let Known::There(known, _) = state.known
            && known >= version
        {
            return (false, None);
        }
        let beats = status.shows_heartbeat_after(state.known.status());
        let age = beats.then(|| match (&state.known, status.recorded(), server) {
            (Known::Unknown, Some(recorded), Some(server)) => {
                let since = server.duration_since(recorded).max(SignedDuration::ZERO);
                Duration::try_from(since).unwrap_or_default().saturating_sub(slack)
            }
            _ => Duration::ZERO,
        });
        if let Some(age) = age {
            state.heartbeat = Some((lease, age));
        }
        let overdue_at = status.overdue_at();
        state.overdue = overdue_at.is_some_and(|at| server.is_some_and(|server| server >= at));
        if let Some(at) = overdue_at.filter(|_| !state.overdue) {
            self.terminating.insert((at, source.clone()));
        }
        state.known = Known::There(version, status);
        (true, age)
    }

    /// The object of a source is gone, in this version. Answers whether that is news.
    pub fn observe_deleted(&mut self, source: &Source, version: ResourceVersion) -> bool {
        let Some(state) = self.sources.get_mut(source) else { return false };
        if matches!(&state.known, Known::There(known, _) if *known > version) {
            return false;
        }
        state.overdue = false;
        !matches!(std::mem::replace(&mut state.known, Known::Absent), Known::Absent)
    }

    /// Takes the Pods that terminate for too long at this time of the API server.
    pub fn take_overdue(&mut self, server: Timestamp) -> Vec<Source> {
        let mut overdue = Vec::new();
        while self.next_overdue().is_some_and(|at| at <= server)
            && let Some((at, source)) = self.terminating.pop_first()
        {
            if let Some(state) = self.sources.get_mut(&source)
                && state.known.status().and_then(SourceStatus::overdue_at) == Some(at)
            {
                state.overdue = true;
                overdue.push(source);
            }
        }
        overdue
    }

    /// When the next Pod that terminates does so for too long, by the API server's clock.
    pub fn next_overdue(&self) -> Option<Timestamp> {
        self.terminating.first().map(|(at, _)| *at)
    }

    /// The time since the last heartbeat of a source, if it's known.
    pub fn since_heartbeat(&self, source: &Source, now: LeaseTime) -> Option<Duration> {
        let (at, age) = self.sources.get(source)?.heartbeat?;
        Some(age.saturating_add(now.since(at)))
    }

    /// Takes in that a source was read: asked for at `asked`, and answered now, on the replica's clock.
    pub fn read_answered(&mut self, source: &Source, asked: Duration, now: Duration) {
        if let Some(state) = self.sources.get_mut(source) {
            state.read = Some((asked, now));
            state.read_again_by = Duration::ZERO;
        }
    }

    /// Takes in that a source is being read, to be answered by `by`. If it was read after `lately`, that will do until then:
    /// of a crowd that ends, one asks again, and the others go on.
    pub fn read_sent(&mut self, source: &Source, lately: Duration, by: Duration) {
        if let Some(state) = self.sources.get_mut(source)
            && state.read.is_some_and(|(_, answered)| answered >= lately)
        {
            state.read_again_by = by;
        }
    }

    /// Takes in that a source could not be read.
    pub fn read_failed(&mut self, source: &Source) {
        if let Some(state) = self.sources.get_mut(source) {
            state.read_again_by = Duration::ZERO;
        }
    }

    /// Takes in that a source can't be read or watched (and why), or can be again. Answers whether that is news.
    pub fn set_unseen(&mut self, source: &Source, unseen: Option<&'static str>) -> bool {
        let Some(state) = self.sources.get_mut(source) else { return false };
        std::mem::replace(&mut state.unseen, unseen) != unseen
    }

    /// The first source that has to be read before this lease, which has been due since `due`, may end by time: its own, or
    /// one up the chain of what that follows. What was answered before `fresh` is too old, unless it is being read again.
    pub fn unread_for(&self, uid: Uuid, due: Duration, fresh: Duration, now: Duration) -> Option<Source> {
        let mut at = self.leases.get(&uid)?;
        for _ in 0..=LONGEST_CHAIN {
            if matches!(at.view, FollowState::Refused(_)) {
                return None;
            }
            let source = &at.follow.source;
            let is_read = self.sources.get(source).is_some_and(|state| {
                let is_new = |answered| answered >= fresh || now < state.read_again_by;
                state.read.is_some_and(|(asked, answered)| asked >= due && is_new(answered))
            });
            if !is_read {
                return Some(source.clone());
            }
            at = self
                .leases
                .get(self.by_name.get(&source.name).filter(|_| source.kind == SourceKind::Lease)?)?;
        }
        None
    }

    // --- What it means -------------------------------------------------------------------------------------------

    /// Computes the state of a follower's source anew, and returns what a change of it means. `state` gives the state of a
    /// lease that is followed.
    pub fn settle(&mut self, uid: Uuid, state: impl Fn(&NamespacedName) -> LeaseState) -> Option<Transition> {
        let view = self.view(uid, state)?;
        let follower = self.leases.get_mut(&uid)?;
        let before = std::mem::replace(&mut follower.view, view);
        if before == view {
            return None;
        }
        if view == FollowState::Unknown {
            return Some(Transition { change: TtlChange::None, ttl_state: TtlState::Running });
        }
        let origin = match view {
            FollowState::Unseen(_) => None,
            _ => follower.origin.take(),
        };
        let ends_on_loss = follower.follow.ends_on_loss;
        let was_lost = follower.lost;
        follower.lost = match view {
            FollowState::Alive { .. } => false,
            FollowState::Lost(_) => true,
            FollowState::Unknown | FollowState::Unseen(_) | FollowState::Refused(_) => was_lost,
        };
        let previous =
            Previous { state: before, origin, was_lost, ends_on_loss, named: follower.follow.uid.is_some() };
        Some(view.transition(&previous))
    }

    fn view(
        &mut self,
        uid: Uuid,
        lease_state: impl Fn(&NamespacedName) -> LeaseState,
    ) -> Option<FollowState> {
        let follower = self.leases.get(&uid)?;
        let source = &follower.follow.source;
        if !self.is_enabled(source.kind) {
            return Some(FollowState::Unseen(following::NOT_ENABLED));
        }
        if source.kind == SourceKind::Lease {
            return Some(match self.refusal(follower) {
                Some(reason) => FollowState::Refused(reason),
                None => match lease_state(&source.name) {
                    LeaseState::Unknown => FollowState::Unknown,
                    LeaseState::Missing => FollowState::Lost(following::SOURCE_MISSING),
                    LeaseState::Ended => FollowState::Lost(following::SOURCE_ENDED),
                    LeaseState::Runs => FollowState::Alive { paused: false },
                    LeaseState::StandsStill => FollowState::Alive { paused: true },
                },
            });
        }
        let state = self.sources.get(source)?;
        if let Some(reason) = state.unseen {
            return Some(FollowState::Unseen(reason));
        }
        Some(match &state.known {
            Known::Unknown => FollowState::Unknown,
            Known::Absent => FollowState::Lost(following::SOURCE_MISSING),
            Known::There(_, SourceStatus::Heartbeat { .. }) => FollowState::Alive { paused: false },
            Known::There(_, SourceStatus::Pod { uid: pod, finished, .. }) => {
                let (pod, finished, overdue) = (*pod, *finished, state.overdue);
                let follower = self.leases.get_mut(&uid)?;
                match *follower.pin.get_or_insert(pod) == pod {
                    false => FollowState::Lost(following::SOURCE_REPLACED),
                    true if finished => FollowState::Lost(following::SOURCE_FINISHED),
                    true if overdue => FollowState::Lost(following::SOURCE_TERMINATING),
                    true => FollowState::Alive { paused: true },
                }
            }
        })
    }

    /// Why a lease that follows another can't: they go round in a circle, or are too many.
    fn refusal(&self, follower: &Follower) -> Option<&'static str> {
        let mut passed: Vec<&NamespacedName> = Vec::new();
        let mut at = follower;
        for _ in 0..LONGEST_CHAIN {
            let source = &at.follow.source;
            if source.kind != SourceKind::Lease {
                return None;
            }
            if source.name == follower.name {
                return Some(following::CYCLE);
            }
            if passed.contains(&&source.name) {
                // A circle further up: those in it follow nothing, and this one follows one of them.
                return None;
            }
            passed.push(&source.name);
            at = self.by_name.get(&source.name).and_then(|uid| self.leases.get(uid))?;
        }
        Some(following::CHAIN_TOO_LONG)
    }

    // --- What is watched -----------------------------------------------------------------------------------------

    /// What has to be watched from now on, if that has changed.
    pub fn replan(&mut self) -> Option<&BTreeSet<SourceWatch>> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        let enabled = &self.enabled;
        let sources = self.sources.keys().filter(|source| enabled.contains(&source.kind));
        let wanted = self.source_watches.wanted(sources);
        if wanted == self.watched {
            return None;
        }
        self.synced.retain(|source_watch| wanted.contains(source_watch));
        self.watched = wanted;
        Some(&self.watched)
    }

    fn watch_of(&self, source: &Source) -> Option<&SourceWatch> {
        let (namespace, name) = (Some(source.name.namespace.clone()), Some(source.name.name.clone()));
        let candidates = [(None, None), (namespace.clone(), None), (namespace, name)];
        candidates.into_iter().find_map(|(namespace, name)| {
            self.watched.get(&SourceWatch { kind: source.kind, namespace, name })
        })
    }

    /// The sources that a watch shows, in one order.
    pub fn sources_of(&self, source_watch: &SourceWatch) -> Vec<Source> {
        let mut shown: Vec<Source> = match (&source_watch.namespace, &source_watch.name) {
            (Some(namespace), Some(name)) => {
                let name = NamespacedName { namespace: namespace.clone(), name: name.clone() };
                let source = Source { kind: source_watch.kind, name };
                self.is_followed(&source).then_some(source).into_iter().collect()
            }
            _ => self.sources.keys().filter(|source| source_watch.covers(source)).cloned().collect(),
        };
        shown.sort_unstable();
        shown
    }

    /// A watch has shown everything that is there: these by_name. Answers the sources that it says are absent.
    pub fn synced(&mut self, source_watch: &SourceWatch, there: &ListedKeys) -> Vec<Source> {
        if self.watched.contains(source_watch) {
            self.synced.insert(source_watch.clone());
        }
        let mut absent = Vec::new();
        for source in self.sources_of(source_watch) {
            let unknown =
                self.sources.get(&source).is_some_and(|state| matches!(state.known, Known::Unknown));
            match there.contains(&source.name) {
                false => absent.push(source),
                // It was reported before a lease followed it.
                true if unknown => self.unread.push(source),
                true => {}
            }
        }
        absent
    }

    /// Takes the sources that have to be read, since no watch will show them by itself.
    pub fn take_unread(&mut self) -> Vec<Source> {
        let unread = std::mem::take(&mut self.unread);
        unread.into_iter().filter(|source| self.is_followed(source)).collect()
    }

    /// A source has to be read again, or for the first time.
    pub fn read_later(&mut self, source: Source) {
        self.unread.push(source);
    }

    /// Whether there is something to read.
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }
}
