//! What a client may believe and do, given what happened on the server. Pure.

use std::time::Duration;

use crate::{
    adapter::Transcript,
    clock::{Moment, lag},
    history::{Kind, Life, Request},
    protocol::Subject,
};

/// By how much two reads of the clocks may differ.
const PRECISION: Duration = Duration::from_millis(5);
/// How soon a client has to notice a revocation that its watch can show.
pub const NOTICE: Duration = Duration::from_secs(2);
/// How soon a client that was frozen has to report a loss, and one whose belief is that it runs has to end.
const WAKING: Duration = Duration::from_secs(1);
/// The most tries to renew within a TTL.
const MOST_TRIES: usize = 20;

/// Everything about one lease that one client held.
#[derive(Debug)]
pub struct Case<'a> {
    /// The lease.
    pub subject: &'a Subject,
    /// What the client has written.
    pub transcript: &'a Transcript,
    /// When the client was frozen.
    pub pauses: &'a [(Moment, Option<Moment>)],
    /// What the client sent.
    pub requests: &'a [Request],
    /// The life of the client's lease, and of others of its name.
    pub life: &'a Life,
    /// What was granted at last, or asked for.
    pub ttl: Duration,
    /// Whether the client could watch the lease all the time.
    pub watched: bool,
    /// Whether no renewal was disturbed.
    pub calm: bool,
}

/// What the client did that it may not. Empty for a client that is right.
pub fn violations(case: &Case<'_>) -> Vec<String> {
    let mut found = Vec::new();
    beliefs(case, &mut found);
    losses(case, &mut found);
    renewals(case, &mut found);
    deletions(case, &mut found);
    found
}

fn beliefs(case: &Case<'_>, found: &mut Vec<String>) {
    let lost = case.transcript.lost.iter().find(|lost| lost.subject == *case.subject);
    let own = case.transcript.beliefs.iter().filter(|(subject, _)| subject == case.subject);
    for belief in own.map(|(_, belief)| belief).filter(|belief| belief.held) {
        let now = belief.now;
        let Some(end) = case.life.lives_until(now) else {
            found.push("believes in a lease that was never granted".to_owned());
            return;
        };
        match belief.until {
            Some(until) if until > end + PRECISION => {
                found.push(format!("believes {} longer than the server promises", lag(until, end)));
                return;
            }
            Some(until) if now > until + PRECISION => {
                found.push(format!("believes {} after its own deadline", lag(now, until)));
                return;
            }
            None if now > end + PRECISION && !just_woke(case, now) => {
                found.push(format!("believes {} after the server may have ended the lease", lag(now, end)));
                return;
            }
            _ => {}
        }
        let ended = case.life.end.filter(|_| !case.life.was_revoked());
        if ended.is_some_and(|ended| now > ended.answered)
            && !(belief.until.is_none() && just_woke(case, now))
        {
            found.push("believes after the server has ended the lease".to_owned());
            return;
        }
        if let Some(deleted) = case.life.deleted
            && case.watched
            && now > deleted.answered + NOTICE
            && !just_woke(case, now)
        {
            found.push(format!("believes {} after the lease was revoked", lag(now, deleted.answered)));
            return;
        }
        if let Some(lost) = lost
            && now > lost.at + PRECISION
        {
            found.push(format!("believes {} after it has reported the loss", lag(now, lost.at)));
            return;
        }
    }
}

fn losses(case: &Case<'_>, found: &mut Vec<String>) {
    let mut losses = case.transcript.lost.iter().filter(|lost| lost.subject == *case.subject);
    let Some(lost) = losses.next() else { return };
    if losses.next().is_some() {
        found.push("reports a loss twice".to_owned());
    }
    if lost.message.trim().is_empty() {
        found.push("reports a loss without a reason for users".to_owned());
    }
    // A revocation comes when it comes.
    if case.life.was_revoked() {
        return;
    }
    if let Some(end) = case.life.lives_until(lost.at)
        && lost.at > end + PRECISION
        && !just_woke(case, lost.at)
    {
        found.push(format!(
            "reports the loss {} after the server may have ended the lease",
            lag(lost.at, end)
        ));
    }
}

fn renewals(case: &Case<'_>, found: &mut Vec<String>) {
    let Subject::Lease(name) = case.subject else { return };
    let tries: Vec<&Request> = case
        .requests
        .iter()
        .filter(|request| request.kind == Kind::Renewal && request.lease == *name)
        .collect();
    if let Some(other) = tries.iter().find(|request| request.uid.as_deref() != Some(&*case.life.uid)) {
        let named = other.uid.as_deref().map_or("no uid".to_owned(), |uid| format!("the uid {uid}"));
        found.push(format!("renews a lease by its name: a request names {named}, not {}", case.life.uid));
    }
    let crowd =
        tries.windows(MOST_TRIES + 1).find(|tries| tries[MOST_TRIES].at.since(tries[0].at) < case.ttl);
    if crowd.is_some() {
        found.push(format!("tries to renew more than {MOST_TRIES} times within a TTL"));
    }
    let gaps = tries.windows(2).map(|pair| pair[1].at.since(pair[0].at));
    if let Some(gap) = gaps.filter(|gap| case.calm && *gap < case.ttl / 4).min() {
        found.push(format!("renews more than needed: {gap:.1?} after the renewal before"));
    }
}

fn deletions(case: &Case<'_>, found: &mut Vec<String>) {
    let Subject::Lease(name) = case.subject else { return };
    let mut deletions =
        case.requests.iter().filter(|request| request.kind == Kind::Deletion && request.lease == *name);
    if deletions.any(|request| request.uid.as_deref() != Some(&*case.life.uid)) {
        found.push("revokes by name: a deletion doesn't name the uid of its lease".to_owned());
    }
}

/// Whether the client went on a moment before, after it had been frozen.
fn just_woke(case: &Case<'_>, now: Moment) -> bool {
    case.pauses.iter().any(|(start, end)| *start < now && end.is_none_or(|end| now < end + WAKING))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        history::Write,
        protocol::{Belief, Lost},
    };

    const TTL: Duration = Duration::from_secs(8);

    /// A lease that was granted at second 0 and renewed at second 3, and what a client wrote and sent.
    struct Scene {
        start: Moment,
        transcript: Transcript,
        requests: Vec<Request>,
        life: Life,
        pauses: Vec<(Moment, Option<Moment>)>,
    }

    impl Scene {
        fn new() -> Self {
            let start = Moment::now();
            let write = |second| Write {
                asked: start + seconds(second),
                answered: start + seconds(second),
                ttl: TTL,
            };
            let life =
                Life { uid: "own".to_owned(), renewals: vec![write(0.0), write(3.0)], ..Life::default() };
            Self { start, transcript: Transcript::default(), requests: Vec::new(), life, pauses: Vec::new() }
        }

        fn believes(mut self, at: f64, until: Option<f64>) -> Self {
            let until = until.map(|until| self.start + seconds(until));
            let belief = Belief { held: true, until, now: self.start + seconds(at), token: None };
            self.transcript.beliefs.push((subject(), belief));
            self
        }

        fn renews(mut self, at: f64, uid: &str) -> Self {
            self.requests.push(Request {
                at: self.start + seconds(at),
                method: "PATCH".to_owned(),
                lease: "a".to_owned(),
                kind: Kind::Renewal,
                uid: Some(uid.to_owned()),
            });
            self
        }

        fn loses(mut self, at: f64) -> Self {
            let (reason, message) = ("not-renewed".to_owned(), "…".to_owned());
            self.transcript.lost.push(Lost {
                subject: subject(),
                reason,
                message,
                at: self.start + seconds(at),
            });
            self
        }

        fn violations(&self) -> String {
            let Self { transcript, requests, life, pauses, .. } = self;
            let subject = &subject();
            let case =
                Case { subject, transcript, pauses, requests, life, ttl: TTL, watched: true, calm: true };
            violations(&case).join("; ")
        }
    }

    fn subject() -> Subject {
        Subject::Lease("a".to_owned())
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_client_may_believe_until_the_ttl_after_its_last_renewal_came() {
        assert_eq!(Scene::new().believes(1.0, Some(7.9)).believes(4.0, Some(10.9)).violations(), "");
        // The renewal of second 3 hasn't come yet.
        let early = Scene::new().believes(1.0, Some(10.9)).violations();
        assert!(early.contains("longer than the server promises"), "{early}");
        let after = Scene::new().believes(11.2, Some(10.9)).violations();
        assert!(after.contains("after its own deadline"), "{after}");
        let runs = Scene::new().believes(11.2, None).violations();
        assert!(runs.contains("after the server may have ended"), "{runs}");
    }

    #[test]
    fn a_loss_is_reported_before_the_deadline_unless_the_client_was_frozen_then() {
        assert_eq!(Scene::new().loses(10.5).violations(), "");
        let mut late = Scene::new().loses(13.5);
        assert!(late.violations().contains("reports the loss"), "{}", late.violations());
        late.pauses.push((late.start + seconds(9.0), Some(late.start + seconds(13.4))));
        assert_eq!(late.violations(), "");
    }

    #[test]
    fn a_revocation_is_noticed_soon_by_a_client_that_can_watch() {
        let mut scene = Scene::new().believes(6.5, Some(10.9));
        let at = scene.start + seconds(4.0);
        scene.life.deleted = Some(Write { asked: at, answered: at, ttl: Duration::ZERO });
        assert!(scene.violations().contains("after the lease was revoked"), "{}", scene.violations());
    }

    #[test]
    fn renewals_name_the_uid_and_keep_their_distance() {
        assert_eq!(Scene::new().renews(3.0, "own").renews(5.7, "own").violations(), "");
        let other = Scene::new().renews(3.0, "other").violations();
        assert!(other.contains("by its name"), "{other}");
        let hurried = Scene::new().renews(3.0, "own").renews(3.5, "own").violations();
        assert!(hurried.contains("more than needed"), "{hurried}");
    }
}
