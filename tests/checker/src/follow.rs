//! What kept a lease alive beside its holder: what it followed (`spec.renewFrom`) when it ended.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::{
    Request,
    history::{History, Object, Version},
    life::{Life, seconds},
    promises::running,
};

/// How what a lease followed kept it alive.
#[derive(Debug)]
pub(crate) enum Kept<'a> {
    /// Each of these was as good as a renewal, if it came in time.
    Beats(Vec<&'a Request>),
    /// Until it lost its Pod no TTL passed, and then it all did, unless the lease ended `at_once`.
    Pod {
        /// How the Pod was lost; `None`: it lives still.
        loss: Option<Loss<'a>>,
        /// Whether no TTL runs after that.
        at_once: bool,
        /// Since when it was followed.
        since: Timestamp,
        /// Whether it was named by its uid, so that it was there once.
        named: bool,
    },
    /// By something that the log doesn't show.
    Unknown,
}

/// How a Pod was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss<'a> {
    /// From here on it may have been.
    pub(crate) earliest: &'a Request,
    /// From here on it was.
    pub(crate) latest: Option<&'a Request>,
}

/// Leases by namespace and name.
pub(crate) type ByName<'l, 'a> = HashMap<(&'a str, &'a str), Vec<&'l Life<'a>>>;

/// What kept this lease alive until the version `end` of it was stored; `None`: it followed nothing.
pub(crate) fn kept<'a>(
    life: &Life<'a>,
    end: u64,
    history: &History<'a>,
    leases: &ByName<'_, 'a>,
) -> Option<Kept<'a>> {
    let last = life.object.as_of(end)?;
    let from = last.at("/spec/renewFrom")?;
    if let Some(pod) = from.get("pod") {
        let named = pod["uid"].as_str();
        let recorded = |version: &Version<'a>| {
            let source = version.at("/status/follows/source")?.as_str()?.strip_prefix("pod/");
            version.at("/status/follows/uid").filter(|_| source == pod["name"].as_str())?.as_str()
        };
        let at_once = pod["onLoss"] == "End";
        let uid = named.or_else(|| recorded(last))?;
        // As long as no other is named or recorded it is the same one, whatever else is said of it.
        let name_of = |version: &Version<'a>| version.at("/spec/renewFrom/pod/uid")?.as_str();
        let is_same = |version: &Version<'a>| {
            version.at("/spec/renewFrom/pod/name") == pod.get("name")
                && name_of(version).or_else(|| recorded(version)).is_none_or(|other| other == uid)
        };
        let (mut since, mut named) = (last.made_by.received, false);
        for version in life
            .object
            .versions
            .iter()
            .rev()
            .filter(|version| version.number <= end)
            .take_while(|v| is_same(v))
        {
            since = version.made_by.received;
            named |= name_of(version).is_some();
        }
        return match history.objects.get(uid) {
            Some(pod) => Some(Kept::Pod { loss: lost(pod), at_once, since, named }),
            // Perhaps it was lost before the log began.
            None => at_once.then_some(Kept::Unknown),
        };
    }
    let since = since(life, end)?;
    if circles(life, since.number, end, leases) {
        // Those in a circle follow nothing, but when it closes is known to the operator alone.
        return Some(Kept::Unknown);
    }
    let mut beats = beats(life, end, history, leases);
    beats.sort_by_key(|request| request.received);
    Some(Kept::Beats(beats))
}

/// Whether this lease has followed one and the same thing from its grant to its end, and no other lease: then it is known
/// when it was due.
pub(crate) fn is_plain(life: &Life<'_>, end: u64) -> bool {
    let grant = life.grant.map_or(0, |grant| grant.version.number);
    let mut froms = life.object.versions.iter().filter(|version| version.number <= end);
    let from = froms.clone().next_back().and_then(|version| version.at("/spec/renewFrom"));
    from.is_none_or(|from| from.get("lease").is_none())
        && froms.all(|version| version.number < grant || version.at("/spec/renewFrom") == from)
}

/// The version since which this lease has followed what it followed at `end`.
fn since<'a>(life: &Life<'a>, end: u64) -> Option<Version<'a>> {
    let from = life.object.as_of(end)?.at("/spec/renewFrom")?;
    let before = life.object.versions.iter().rev().filter(|version| version.number <= end);
    before.take_while(|version| version.at("/spec/renewFrom") == Some(from)).last().copied()
}

/// The names of the leases that one of this name has followed between two versions.
fn followed<'a>(
    (namespace, name): (&'a str, &'a str),
    since: u64,
    end: u64,
    leases: &ByName<'_, 'a>,
) -> BTreeSet<&'a str> {
    let lives = leases.get(&(namespace, name)).into_iter().flatten();
    let versions = lives.flat_map(|life| {
        let first = life.object.versions.partition_point(|version| version.number <= since).saturating_sub(1);
        life.object.versions.iter().skip(first).filter(|version| version.number <= end)
    });
    versions.filter_map(|version| version.at("/spec/renewFrom/lease/name")?.as_str()).collect()
}

/// Whether the leases that this one followed between two versions, one after another, came to a circle meanwhile.
fn circles<'a>(life: &Life<'a>, since: u64, end: u64, leases: &ByName<'_, 'a>) -> bool {
    fn visit<'a>(
        name: &'a str,
        path: &mut Vec<&'a str>,
        known: &mut BTreeSet<&'a str>,
        follows: &impl Fn(&'a str) -> BTreeSet<&'a str>,
    ) -> bool {
        if path.contains(&name) {
            return true;
        }
        if !known.insert(name) {
            return false;
        }
        path.push(name);
        let found = follows(name).into_iter().any(|next| visit(next, path, known, follows));
        path.pop();
        found
    }
    let namespace = life.object.namespace;
    let follows = |name| followed((namespace, name), since, end, leases);
    visit(life.object.name, &mut Vec::new(), &mut BTreeSet::new(), &follows)
}

/// The beats of what this lease followed, of what that followed, and so on, that came before the version `end`. They go round in
/// no circle.
fn beats<'a>(life: &Life<'a>, end: u64, history: &History<'a>, leases: &ByName<'_, 'a>) -> Vec<&'a Request> {
    let Some((from, since)) = life
        .object
        .as_of(end)
        .and_then(|version| version.at("/spec/renewFrom"))
        .zip(since(life, end).map(|version| version.number))
    else {
        return Vec::new();
    };
    let named = |kind: &str| from.get(kind)?.get("name")?.as_str();
    if let Some(name) = named("lease") {
        let sources = leases.get(&(life.object.namespace, name)).into_iter().flatten();
        let alive = sources.filter(|source| source.end.is_none_or(|over| over.version.number > since));
        return alive.flat_map(|source| of_lease(source, since, end, history, leases)).collect();
    }
    let (namespace, name) = match (named("coordinationLease"), named("node")) {
        (Some(name), _) => (life.object.namespace, name),
        (_, Some(name)) => ("kube-node-lease", name),
        _ => return Vec::new(),
    };
    let hearts = history.objects.values().filter(|object| {
        object.is_of("coordination.k8s.io", "leases") && (object.namespace, object.name) == (namespace, name)
    });
    hearts
        .flat_map(|heart| {
            let mut before: Option<&Value> = None;
            let changes = heart.versions.iter().filter(move |version| {
                let time = version.at("/spec/renewTime");
                let beats = time.is_some() && time != before;
                before = time;
                beats
            });
            let followed = since + 1..end;
            changes.filter(move |version| followed.contains(&version.number)).map(|version| version.made_by)
        })
        .collect()
}

/// What renewed a lease that is followed, and so renewed its followers: its grant, renewals by hand, and what it followed
/// itself, as far as that came before its own deadline.
fn of_lease<'a>(
    source: &Life<'a>,
    since: u64,
    end: u64,
    history: &History<'a>,
    leases: &ByName<'_, 'a>,
) -> Vec<&'a Request> {
    let until = source.end.as_ref().map_or(end, |over| over.version.number.min(end));
    let signs = source.grant.iter().chain(&source.renewals);
    let signs = signs.filter(|sign| sign.version.number < until);
    let mut all: Vec<(&Request, bool, bool)> = signs
        .map(|sign| (sign.version.made_by, true, sign.version.number > since))
        .chain(beats(source, until, history, leases).into_iter().map(|beat| (beat, false, true)))
        .collect();
    // Before it was granted it kept nothing alive, and one that never was never did.
    let Some(grant) = &source.grant else { return Vec::new() };
    all.retain(|(request, ..)| request.received >= grant.version.made_by.received);
    all.sort_by_key(|(request, ..)| request.received);
    // Whatever its TTL was at the time.
    let ttls = source.object.versions.iter().filter_map(|version| seconds(version, "ttlSeconds"));
    let ttl = ttls.min().unwrap_or_default();
    let mut last: Option<&Request> = None;
    all.retain(|(request, by_hand, _)| {
        let counts =
            *by_hand || last.is_some_and(|last| running(last.received, request.answered, &[]) <= ttl);
        if counts {
            last = Some(request);
        }
        counts
    });
    all.into_iter().filter(|(.., new)| *new).map(|(request, ..)| request).collect()
}

/// How a Pod was lost; `None`: it lives.
fn lost<'a>(pod: &Object<'a>) -> Option<Loss<'a>> {
    let finished = |version: &&Version<'a>| {
        let phase = version.at("/status/phase").and_then(Value::as_str);
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let finished = pod.versions.iter().find(finished).map(|version| version.made_by);
    let deleting = pod.versions.iter().find(|version| version.is_deleting()).map(|version| version.made_by);
    let latest = finished.into_iter().chain(pod.gone_by).min_by_key(|request| request.received);
    // Whatever lets it go in the end may not be in the log.
    let earliest = deleting.into_iter().chain(latest).min_by_key(|request| request.received)?;
    Some(Loss { earliest, latest })
}
