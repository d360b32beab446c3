//! The promises, one check each.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::{
    Checker, Figures, Promise, Report, Request, Violation,
    annotations::Attached,
    follow::{self, ByName, Kept, Loss},
    history::{History, Object, Version},
    life::{End, FINALIZER, GROUP, Life, Release, Sign, seconds},
};

/// Two readings of one clock that is being adjusted may differ by so much more than the time between them.
const CLOCK: Duration = Duration::from_millis(5);

pub(crate) fn check(checker: &Checker, requests: &[Request]) -> Report {
    let history = History::of(requests);
    let leases = history.objects.values().filter(|object| object.is_of(GROUP, "leases"));
    let lives: Vec<Life<'_>> = leases.map(|object| Life::of(object, &history)).collect();
    let mut by_name: ByName<'_, '_> = HashMap::new();
    for life in &lives {
        by_name.entry((life.object.namespace, life.object.name)).or_default().push(life);
    }
    let mut check = Check { checker, history: &history, by_name, report: Report::default() };
    for life in &lives {
        check.end_is_not_early(life);
        check.end_is_final(life);
        check.end_is_complete(life);
    }
    for object in history.objects.values() {
        check.terms_never_decrease(object);
    }
    for request in requests.iter().filter(|request| checker.is_operator(request)) {
        check.request_of_operator(request);
    }
    check.terms_have_one_primary();
    count(&lives, &mut check.report.figures);
    check.report
}

struct Check<'a> {
    checker: &'a Checker,
    history: &'a History<'a>,
    by_name: ByName<'a, 'a>,
    report: Report,
}

impl<'a> Check<'a> {
    fn violation<'r>(
        &mut self,
        promise: Promise,
        object: String,
        what: impl Into<String>,
        requests: impl IntoIterator<Item = &'r Request>,
    ) {
        let requests = requests.into_iter().cloned().collect();
        self.report.violations.push(Violation { promise, object, what: what.into(), requests });
    }

    // --- P1 and P2 ---------------------------------------------------------------------------------------------

    fn end_is_not_early(&mut self, life: &Life<'a>) {
        let Some(End { version, request: Some(request), since, expired: true }) = life.end else { return };
        let label = life.object.label();
        let Some(sign) = life.last_sign().filter(|sign| sign.version.number < version.number) else {
            self.violation(Promise::NeverEarly, label, "it expired without a grant", [request]);
            return;
        };
        let ttl = seconds(&sign.version, "ttlSeconds").unwrap_or_default();
        let ttl = self.checker.max_ttl.map_or(ttl, |max| max.min(ttl));
        let known = self.checker.outages.iter().filter(|outage| since < outage.known_until);
        let outages: Vec<_> = known.map(|outage| (outage.from, outage.to)).collect();
        let stood_still: Vec<_> =
            life.suspensions(&sign).into_iter().chain(outages.iter().copied()).collect();
        let lived = life.grant.map(|grant| running(grant.since, since, &outages)).unwrap_or_default();
        // The spec that was in force at the end has the cap.
        let capped = life
            .object
            .as_of(version.number)
            .and_then(|version| seconds(version, "maxLifetimeSeconds"))
            .is_some_and(|lifetime| lived + CLOCK >= lifetime);
        if capped {
            return;
        }
        // From where the TTL counts, and from where it may, where that is no promise.
        let (kept_by, ttl, perhaps) = match follow::kept(life, version.number, self.history, &self.by_name) {
            None => (sign.version.made_by, ttl, None),
            Some(Kept::Unknown) => return,
            Some(Kept::Pod { loss, at_once, since: followed, named }) => {
                let Some(Loss { earliest, latest }) = loss.filter(|loss| loss.earliest.received <= since)
                else {
                    let what = "it expired though the Pod that it follows lives";
                    self.violation(Promise::NeverEarly, label, what, [request]);
                    return;
                };
                // One that was lost before it was followed keeps nothing alive, and ends nothing unless it is named.
                let was_there = latest.is_none_or(|latest| latest.received > followed);
                let renewed = !was_there || sign.version.made_by.received >= earliest.received;
                let from = if renewed { sign.version.made_by } else { earliest };
                // The loss of a Pod ends a lease whatever has renewed it, as a revoke does.
                let ends = at_once && (was_there || named);
                (from, if ends { Duration::ZERO } else { ttl }, latest)
            }
            Some(Kept::Beats(beats)) => {
                // One that came after the deadline saved nothing.
                let in_time = |last: &Request, beat: &Request| {
                    beat.received > last.received
                        && running(last.received, beat.answered, &stood_still) <= ttl
                };
                let perhaps = beats.iter().copied().rfind(|beat| beat.received <= since);
                let last = beats
                    .into_iter()
                    .fold(sign.version.made_by, |last, beat| if in_time(last, beat) { beat } else { last });
                (last, ttl, perhaps)
            }
        };
        let by_itself = std::ptr::eq(kept_by, sign.version.made_by);
        let from = if by_itself { sign.since } else { kept_by.received };
        let ran = running(from, since, &stood_still);
        if ran + CLOCK < ttl {
            let renewed = if Some(sign.version.number) == life.grant.map(|grant| grant.version.number) {
                (Promise::NeverEarly, "its grant")
            } else {
                (Promise::OneOutcome, "an accepted renewal")
            };
            let renewed =
                if by_itself { renewed } else { (Promise::NeverEarly, "a sign of life of what it follows") };
            let what = format!("it expired {ran:?} after {}, though its TTL is {ttl:?}", renewed.1);
            self.violation(renewed.0, label, what, [kept_by, request]);
        } else if follow::is_plain(life, version.number) {
            let from = perhaps.map_or(from, |perhaps| perhaps.received.max(from));
            let ran = running(from, since, &stood_still);
            let lease = format!("{}/{}", life.object.namespace, life.object.name);
            self.report.figures.lateness.push((ran.saturating_sub(ttl), lease));
        }
    }

    fn end_is_final(&mut self, life: &Life<'_>) {
        let Some(end) = &life.end else { return };
        let (end, label) = (end.version, life.object.label());
        for version in life.object.versions.iter().filter(|version| version.number > end.number) {
            if version.at("/spec").is_none() {
                continue;
            }
            if version.at("/spec") != end.at("/spec") {
                let requests = [end.made_by, version.made_by];
                self.violation(
                    Promise::OneOutcome,
                    label.clone(),
                    "its spec changed after its end",
                    requests,
                );
            }
            if version.at("/status/endTime") != end.at("/status/endTime") {
                let requests = [end.made_by, version.made_by];
                self.violation(Promise::OneOutcome, label.clone(), "its end was moved", requests);
            }
        }
    }

    // --- P3 ----------------------------------------------------------------------------------------------------

    fn request_of_operator(&mut self, request: &Request) {
        if !request.is_accepted() {
            self.report.figures.refused += usize::from(matches!(request.code, 409 | 422));
            return;
        }
        let is_status = request.is_of(GROUP, "leases") && request.subresource == "status";
        if is_status && request.body_at("/status/term").is_none() {
            let label = format!("leases {}/{}", request.namespace, request.name);
            self.violation(Promise::Harmless, label, "a write of status without a term", [request]);
        }
        let writes_events = request.resource == "events";
        if request.group == GROUP || writes_events || !request.subresource.is_empty() {
            return;
        }
        if let Err(what) = self.removal(request) {
            let label = format!("{} {}/{}", request.resource, request.namespace, request.name);
            self.violation(Promise::NothingUnattached, label, what, [request]);
        }
    }

    /// Whether the operator may have removed what this request removes; an error has the reason why not.
    fn removal(&mut self, request: &Request) -> Result<(), String> {
        let whole = match request.verb.as_str() {
            "delete" => true,
            "patch" => false,
            verb => return Err(format!("the operator has no business to {verb} it")),
        };
        let place = if whole { "/preconditions" } else { "/metadata" };
        let bound = |member: &str| {
            let value = request.body_at(&format!("{place}/{member}")).and_then(Value::as_str);
            value.ok_or_else(|| format!("the request isn't bound to a {member}"))
        };
        let (uid, number) = (bound("uid")?, bound("resourceVersion")?);
        let version = self.history.objects.get(uid).and_then(|object| object.version(number.parse().ok()?));
        let version = *version.ok_or("the version that the request is bound to isn't in the log")?;
        let attached = Attached::of(version.object);
        if whole {
            let lease = attached.whole.ok_or("it was not attached in this version")?;
            self.report.figures.objects += 1;
            return self.has_ended(&lease, request);
        }
        let (keys, annotations) = removed(request)?;
        self.report.figures.keys += keys.len();
        for key in &keys {
            let lease = attached
                .keys
                .get(*key)
                .ok_or_else(|| format!("key {key:?} was not attached in this version"))?;
            self.has_ended(lease, request).map_err(|what| format!("key {key:?}: {what}"))?;
        }
        match annotations.into_iter().find(|annotation| !Attached::is_ours(annotation)) {
            Some(other) => Err(format!("annotation {other:?} is none of the operator's business")),
            None if keys.is_empty() => Err("it removes no key".to_owned()),
            None => Ok(()),
        }
    }

    /// Whether, when `request` was received, the lease of this name in the same namespace had ended and was not released.
    fn has_ended(&self, lease: &str, request: &Request) -> Result<(), String> {
        let wrote: Option<u64> = request
            .answer
            .as_ref()
            .and_then(|answer| answer.pointer("/metadata/resourceVersion")?.as_str()?.parse().ok());
        let lives =
            self.by_name.get(&(request.namespace.as_str(), lease)).map(Vec::as_slice).unwrap_or_default();
        let mut why = BTreeSet::new();
        for life in lives {
            let Some(end) = &life.end else {
                why.insert("had not ended");
                continue;
            };
            let before_end = request.received < end.since || wrote.is_some_and(|n| n <= end.version.number);
            let after_release = life.release.is_some_and(|release| release.is_before(request, wrote));
            match (before_end, after_release) {
                (false, false) => return Ok(()),
                (true, _) => why.insert("had not ended yet"),
                (_, true) => why.insert("had been released before"),
            };
        }
        Err(match Vec::from_iter(why)[..] {
            [] => format!("there is no lease {lease:?}"),
            ref why => format!("lease {lease:?} {}", why.join(", and one of its name ")),
        })
    }

    // --- P4 ----------------------------------------------------------------------------------------------------

    fn end_is_complete(&mut self, life: &Life<'_>) {
        let label = life.object.label();
        if let Some(Sign { version: grant, .. }) = life.grant
            && !grant.has_finalizer(FINALIZER)
        {
            self.violation(
                Promise::Complete,
                label.clone(),
                "it was granted without the finalizer",
                [grant.made_by],
            );
        }
        let Some(end) = &life.end else { return };
        let Some(release) = life.release else {
            if let Some(gone) = life.object.gone_by {
                let requests = [end.version.made_by, gone];
                self.violation(Promise::Complete, label, "it went before it was released", requests);
            }
            return;
        };
        for object in self.history.objects.values() {
            if object.namespace != life.object.namespace || object.group == GROUP {
                continue;
            }
            // Perhaps it went, and the log of that with the API server.
            let may_have_gone = self.checker.deaths.iter().any(|death| {
                (end.since..=release.request.received).contains(death) && object.last_seen() <= *death
            });
            if let Some(left) =
                left_behind(object, life, end, &release, self.history).filter(|_| !may_have_gone)
            {
                let what = format!("{left} of {} was left when it was released", object.label());
                let last = object.versions.last().map(|version| version.made_by);
                let requests =
                    [end.version.made_by, release.request].into_iter().chain(last).chain(object.gone_by);
                self.violation(Promise::Complete, label.clone(), what, requests);
            }
        }
    }

    // --- P5 ----------------------------------------------------------------------------------------------------

    fn terms_never_decrease(&mut self, object: &Object<'_>) {
        if object.group != GROUP {
            return;
        }
        let mut highest: Option<(i64, &Request)> = None;
        for version in &object.versions {
            if version.at("/spec").is_none() && object.resource == "leases" {
                continue;
            }
            let term = version.at("/status/term").and_then(Value::as_i64);
            if let Some((highest, before)) = highest
                && term.is_none_or(|term| term < highest)
            {
                let what = format!("its term went from {highest} to {term:?}");
                self.violation(Promise::Harmless, object.label(), what, [before, version.made_by]);
            }
            highest = term.map(|term| (term, version.made_by)).or(highest);
        }
    }

    /// Two primaries under one term would both be in the right, as far as the API server can tell.
    fn terms_have_one_primary(&mut self) {
        // Each installation has a lessor of its own, and terms of its own; a lease knows them by the primary's name only, so
        // it is the lessors that are looked at.
        let lessors = self.history.objects.values().filter(|object| object.is_of(GROUP, "lessors"));
        let mut primaries: BTreeMap<(&str, i64), (&str, &Request)> = BTreeMap::new();
        let mut found = Vec::new();
        for object in lessors {
            for version in &object.versions {
                let name =
                    version.at("/status/primary").and_then(Value::as_str).filter(|name| !name.is_empty());
                let term = version.at("/status/term").and_then(Value::as_i64);
                let (Some(name), Some(term)) = (name, term) else { continue };
                let (first, claim) = primaries.entry((object.name, term)).or_insert((name, version.made_by));
                if *first != name {
                    let what = format!("term {term} was held by {first} and by {name}");
                    found.push((object.label(), what, [*claim, version.made_by]));
                }
            }
        }
        for (label, what, requests) in found {
            self.violation(Promise::Harmless, label, what, requests);
        }
        self.report.figures.primaries =
            primaries.into_iter().map(|((_, term), (name, _))| (term, name.to_owned())).collect();
    }
}

/// The time from `from` to `to`, less the times that lie in any of `without`.
pub(crate) fn running(from: Timestamp, to: Timestamp, without: &[(Timestamp, Timestamp)]) -> Duration {
    let mut without: Vec<_> =
        without.iter().map(|(begin, end)| ((*begin).max(from), (*end).min(to))).collect();
    without.sort();
    let (mut ran, mut at) = (Duration::ZERO, from);
    for (begin, end) in without.into_iter().filter(|(begin, end)| begin < end) {
        ran += between(at, begin);
        at = at.max(end);
    }
    ran + between(at, to)
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

/// The keys and the annotations that a merge patch of the operator removes or changes; an error if it does more.
fn removed(request: &Request) -> Result<(BTreeSet<&str>, BTreeSet<&str>), String> {
    let body = request.body.as_ref().and_then(Value::as_object).ok_or("the patch is none that merges")?;
    let (mut keys, mut annotations) = (BTreeSet::new(), BTreeSet::new());
    for (member, value) in body {
        let members = value.as_object().into_iter().flatten();
        match member.as_str() {
            "metadata" => {
                for (name, value) in members {
                    match (name.as_str(), value.as_object()) {
                        ("uid" | "resourceVersion", _) => {}
                        ("annotations", Some(changes)) => {
                            annotations.extend(changes.keys().map(String::as_str))
                        }
                        _ => return Err(format!("it changes metadata.{name}")),
                    }
                }
            }
            "data" | "binaryData" => {
                for (key, value) in members {
                    if !value.is_null() {
                        return Err(format!("it writes the key {key:?}"));
                    }
                    keys.insert(key.as_str());
                }
            }
            _ => return Err(format!("it changes {member}")),
        }
    }
    Ok((keys, annotations))
}

/// What was attached when the lease ended, and still was when it was released.
fn left_behind(
    object: &Object<'_>,
    life: &Life<'_>,
    end: &End<'_>,
    release: &Release<'_>,
    history: &History<'_>,
) -> Option<String> {
    let lease = life.object.name;
    let at_end = Attached::of(object.as_of(end.version.number)?.object);
    let mut left = at_end.to(lease);
    // Whatever was detached in between, and attached anew perhaps, wasn't seen to be attached before the end.
    let between = |version: &&Version<'_>| version.number > end.version.number && release.is_after(version);
    for version in object.versions.iter().filter(between) {
        let attached = Attached::of(version.object);
        let still = attached.to(lease);
        left.retain(|item| still.contains(&item.map(|key| key)));
    }
    let item = left.first()?.map_or_else(|| "the whole".to_owned(), |key| format!("key {key:?}"));
    let removes = |request: &Request| {
        request.is_of(object.group, object.resource)
            && request.namespace == object.namespace
            && request.name == object.name
            && request.received <= release.request.received
    };
    let gone = object.gone_by.is_some_and(|gone| gone.received <= release.request.received);
    let perhaps = history.unsure.iter().any(|request| removes(request));
    (!gone && !perhaps).then_some(item)
}

fn count(lives: &[Life<'_>], figures: &mut Figures) {
    for life in lives {
        figures.granted += usize::from(life.grant.is_some());
        figures.renewed += life.renewals.len();
        figures.released += usize::from(life.release.is_some());
        match &life.end {
            Some(End { request: None, .. }) => figures.unlogged += 1,
            Some(End { expired: true, .. }) => figures.expired += 1,
            Some(_) => figures.revoked += 1,
            None => {}
        }
    }
    figures.lateness.sort();
}
