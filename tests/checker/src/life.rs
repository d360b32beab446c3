//! The life of a lease: grant, renewals, suspensions, end and release.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::{
    Request,
    history::{History, Object, Version},
};

pub(crate) const GROUP: &str = "lessor.dev";
pub(crate) const FINALIZER: &str = "lessor.dev/revoke";

/// When the end of a lease was committed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End<'a> {
    /// The first version that shows it.
    pub(crate) version: Version<'a>,
    /// The request that committed it, unless it isn't in the log.
    pub(crate) request: Option<&'a Request>,
    /// Not before this time.
    pub(crate) since: Timestamp,
    /// Whether it was by time, and not by deletion.
    pub(crate) expired: bool,
}

/// A grant or a renewal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sign<'a> {
    /// The first version that shows it.
    pub(crate) version: Version<'a>,
    /// When it was received. If the API server gave up waiting for its store, a later write shows what it did.
    pub(crate) since: Timestamp,
}

/// A lease, from its versions.
#[derive(Debug)]
pub(crate) struct Life<'a> {
    pub(crate) object: &'a Object<'a>,
    /// The first version that is granted.
    pub(crate) grant: Option<Sign<'a>>,
    /// Versions in which the lease had been renewed.
    pub(crate) renewals: Vec<Sign<'a>>,
    pub(crate) end: Option<End<'a>>,
    pub(crate) release: Option<Release<'a>>,
}

/// When the operator's finalizer went after the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Release<'a> {
    /// The version without it; `None` if it went together with the lease.
    number: Option<u64>,
    pub(crate) request: &'a Request,
}

impl Release<'_> {
    /// Whether `version` was stored before.
    pub(crate) fn is_after(&self, version: &Version<'_>) -> bool {
        match self.number {
            Some(number) => version.number <= number,
            None => version.made_by.received <= self.request.received,
        }
    }

    /// Whether `request`, which stored the version `wrote` if it did, must have been received after it.
    pub(crate) fn is_before(&self, request: &Request, wrote: Option<u64>) -> bool {
        self.request.answered < request.received
            || self.number.zip(wrote).is_some_and(|(number, wrote)| wrote > number)
    }
}

impl<'a> Life<'a> {
    pub(crate) fn of(object: &'a Object<'a>, history: &History<'a>) -> Self {
        // What shows metadata only, shows nothing of these.
        let mut whole = object.versions.iter().filter(|version| version.at("/spec").is_some()).peekable();
        let mut life = Self { object, grant: None, renewals: Vec::new(), end: None, release: None };
        let mut before: Option<&Version<'a>> = None;
        for version in &mut whole {
            if life.grant.is_none() && version.at("/status/specGeneration").is_some() {
                life.grant = Some(sign(object, before, *version, history));
            }
            if before.is_some_and(|before| renewal(before) != renewal(version)) {
                life.renewals.push(sign(object, before, *version, history));
            }
            if life.end.is_none() && version.at("/status/endTime").is_some() {
                life.end = Some(end(object, before, *version, history));
            }
            before = Some(version);
        }
        if let Some(end) = &life.end {
            let mut after = object.versions.iter().filter(|version| version.number >= end.version.number);
            let without = after.find(|version| !version.has_finalizer(FINALIZER));
            let release =
                without.map(|version| Release { number: Some(version.number), request: version.made_by });
            let last = object.gone_by.filter(|request| request.verb != "delete");
            life.release = release.or_else(|| last.map(|request| Release { number: None, request }));
        }
        life
    }

    /// The last renewal before the end, or the grant: from where the TTL counts.
    pub(crate) fn last_sign(&self) -> Option<Sign<'a>> {
        let end = self.end.as_ref().map_or(u64::MAX, |end| end.version.number);
        let grant = self.grant?;
        let renewal = self.renewals.iter().rev().find(|renewal| renewal.version.number < end).copied();
        // A renewal before the grant is part of what is granted.
        Some(renewal.filter(|renewal| renewal.version.number > grant.version.number).unwrap_or(grant))
    }

    /// When lease time stood still since `sign`, because the lease was suspended: from the acknowledgement (what the operator
    /// saw a little earlier doesn't count against it) to the resumption. The last may last on.
    pub(crate) fn suspensions(&self, sign: &Sign<'a>) -> Vec<(Timestamp, Timestamp)> {
        let sign = &sign.version;
        let mut suspensions = Vec::new();
        let mut since: Option<Timestamp> = None;
        for version in self.object.versions.iter().filter(|version| version.number >= sign.number) {
            let wanted = version.at("/spec/suspend") == Some(&Value::Bool(true));
            match since {
                None if wanted && is_suspended(version) => {
                    let renewed = version.number == sign.number;
                    since = Some(if renewed { version.made_by.received } else { version.made_by.answered });
                }
                Some(from) if !wanted => {
                    suspensions.push((from, version.made_by.received));
                    since = None;
                }
                _ => {}
            }
        }
        suspensions.extend(since.map(|from| (from, Timestamp::MAX)));
        suspensions
    }
}

/// What renews a lease when it changes.
fn renewal<'a>(version: &Version<'a>) -> (Option<&'a Value>, Option<&'a Value>) {
    (version.at("/spec/renewTime"), version.at("/spec/ttlSeconds"))
}

fn is_suspended(version: &Version<'_>) -> bool {
    let conditions = version.at("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|condition| condition["type"] == "Active" && condition["reason"] == "Suspended")
    })
}

fn sign<'a>(
    object: &Object<'a>,
    before: Option<&Version<'a>>,
    version: Version<'a>,
    history: &History<'a>,
) -> Sign<'a> {
    let earliest = before.map_or(Timestamp::MIN, |before| before.made_by.received);
    let is_sign = |request: &Request| {
        ["/status/specGeneration", "/spec/renewTime", "/spec/ttlSeconds"]
            .iter()
            .any(|field| request.body_at(field).is_some())
    };
    let unsure = history.unsure.iter().filter(|request| is_about(request, object) && is_sign(request));
    let unsure = unsure.map(|request| request.received).filter(|received| *received >= earliest).min();
    // A version that was made by something else, like a write of status, shows what isn't in the log at all: the API server
    // died before it could log it. It came after what was there before, at an unknown time.
    let made = Some(version.made_by).filter(|request| is_sign(request)).map(|request| request.received);
    Sign { version, since: made.into_iter().chain(unsure).min().unwrap_or(earliest) }
}

fn is_about(request: &Request, object: &Object<'_>) -> bool {
    request.is_of(object.group, object.resource)
        && request.namespace == object.namespace
        && request.name == object.name
}

fn end<'a>(
    object: &Object<'a>,
    before: Option<&Version<'a>>,
    version: Version<'a>,
    history: &History<'a>,
) -> End<'a> {
    let commits = |request: &Request| request.body_at("/status/endTime").is_some();
    // Where the answer was lost together with the log of it, a later write shows what it did.
    let unsure = || {
        history.unsure.iter().copied().rfind(|request| {
            is_about(request, object) && commits(request) && request.received <= version.made_by.received
        })
    };
    let request = Some(version.made_by).filter(|request| commits(request)).or_else(unsure);
    let earliest = before.map_or(version.made_by, |before| before.made_by).received;
    End {
        version,
        request,
        since: request.map_or(earliest, |request| request.received),
        expired: !version.is_deleting(),
    }
}

/// What `spec` has as a number of seconds.
pub(crate) fn seconds(version: &Version<'_>, field: &str) -> Option<Duration> {
    let seconds = version.at("/spec")?.get(field)?.as_u64()?;
    Some(Duration::from_secs(seconds))
}
