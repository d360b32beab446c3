//! What kept a lease alive beside its holder: what it followed (`spec.renewFrom`) when it ended.

use std::collections::HashMap;

use serde_json::Value;

use crate::{
    Request,
    history::{History, Version},
    life::Life,
};

/// So many leases may follow one another.
const LONGEST_CHAIN: usize = 16;

/// How what a lease followed kept it alive.
#[derive(Debug)]
pub(crate) enum Kept<'a> {
    /// Each of these was as good as a renewal, if it came in time.
    Beats(Vec<&'a Request>),
    /// Up to this request no TTL passed, and then it all did, unless the lease ended `at_once`. `None`: it lives still.
    Until {
        /// What the Pod was lost by.
        lost: Option<&'a Request>,
        /// Whether no TTL ran after that.
        at_once: bool,
        /// Whether it was named by its uid, so that it may have been lost before the grant.
        named: bool,
    },
    /// By something that the log doesn't show.
    Unknown,
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
    if is_refused(life, end) {
        return None;
    }
    if let Some(pod) = from.get("pod") {
        let at_once = pod["onLoss"] == "End";
        return match lost(last.at("/status/follows/uid")?.as_str()?, history) {
            Some(lost) => Some(Kept::Until { lost, at_once, named: pod["uid"].is_string() }),
            // Perhaps it was lost before the log began.
            None => at_once.then_some(Kept::Unknown),
        };
    }
    let mut beats = beats(life, end, history, leases, 0);
    beats.sort_by_key(|request| request.received);
    Some(Kept::Beats(beats))
}

/// The beats of what this lease followed up to the version `end`, of what that followed, and so on.
fn beats<'a>(
    life: &Life<'a>,
    end: u64,
    history: &History<'a>,
    leases: &ByName<'_, 'a>,
    depth: usize,
) -> Vec<&'a Request> {
    let Some(from) = life.object.as_of(end).and_then(|version| version.at("/spec/renewFrom")) else {
        return Vec::new();
    };
    // What it has followed since then.
    let before = life.object.versions.iter().rev().filter(|version| version.number <= end);
    let since = before.take_while(|version| version.at("/spec/renewFrom") == Some(from)).last();
    let Some(since) = since.map(|version| version.number) else { return Vec::new() };
    let named = |kind: &str| from.get(kind)?.get("name")?.as_str();
    if let Some(name) = named("lease") {
        let sources = leases.get(&(life.object.namespace, name)).map(Vec::as_slice).unwrap_or_default();
        if depth >= LONGEST_CHAIN || name == life.object.name {
            return Vec::new();
        }
        let of_source = sources.iter().flat_map(|source| {
            let signs = source.renewals.iter().chain(source.grant.as_ref());
            let own = signs.filter(|sign| sign.version.number > since).map(|sign| sign.version.made_by);
            let until = source.end.as_ref().map_or(end, |over| over.version.number.min(end));
            own.chain(beats(source, until, history, leases, depth + 1)).collect::<Vec<_>>()
        });
        return of_source.collect();
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
            changes.filter(|version| version.number > since).map(|version| version.made_by)
        })
        .collect()
}

/// The request by which the Pod of this uid was lost at the earliest.
///
/// Answers `None` for a Pod that the log knows nothing of, and `Some(None)` if it lives.
fn lost<'a>(uid: &str, history: &History<'a>) -> Option<Option<&'a Request>> {
    let pod = history.objects.get(uid)?;
    let finished = |version: &&Version<'a>| {
        let phase = version.at("/status/phase").and_then(Value::as_str);
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let finished = pod.versions.iter().find(finished).map(|version| version.made_by);
    let deleting = pod.versions.iter().find(|version| version.is_deleting()).map(|version| version.made_by);
    Some(finished.into_iter().chain(deleting).chain(pod.gone_by).min_by_key(|request| request.received))
}

/// Whether two leases of ours follow one another in a circle, or too many do: then they follow nothing.
fn is_refused(life: &Life<'_>, end: u64) -> bool {
    // The end itself says nothing of it any more.
    let before = life.object.as_of(end.saturating_sub(1));
    let conditions = before.and_then(|version| version.at("/status/conditions"));
    conditions.and_then(Value::as_array).into_iter().flatten().any(|condition| {
        condition["type"] == "Following"
            && matches!(condition["reason"].as_str(), Some("Cycle" | "ChainTooLong"))
    })
}
