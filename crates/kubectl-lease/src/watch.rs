//! `kubectl lease watch`: what happens to leases, as it happens.

use std::collections::HashMap;

use clap::Args as ClapArgs;
use futures::{Stream, StreamExt, future};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher, watcher::Event},
};
use lessor_api::{Lease, lease::condition};
use lessor_client::{Error, Reading, State};

use crate::{
    connect::Session,
    error::{Failure, Outcome, note},
    list::{Scope, attached},
    output::{Colour, Screen, colour_of, name_of, sentence},
};

/// Show what happens to leases, as it happens
///
/// Begins with the leases as they are, and goes on until Ctrl-C.
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease watch
  kubectl lease watch web-1
  kubectl lease watch -A -l team=web")]
pub(crate) struct Args {
    /// Only the lease of this name
    #[arg(conflicts_with_all = ["all_namespaces", "selector"])]
    name: Option<String>,

    #[command(flatten)]
    scope: Scope,
}

/// What a watch shows.
pub(crate) enum Change {
    /// A lease as it was in the beginning.
    Begun(Reading),
    /// A lease that is new, or has changed.
    Changed(Reading),
    /// A lease that is gone, as it last was.
    Gone(Reading),
    /// All leases have been shown that were there in the beginning.
    Complete,
}

/// Watches leases. A failure is told and waited out; a missing right ends it.
pub(crate) async fn changes(
    session: &Session,
    scope: &Scope,
    name: Option<&str>,
) -> Outcome<impl Stream<Item = Outcome<Change>> + use<>> {
    // No event of a watch says what time the server has.
    let time = session.leases.server_time(scope.all_namespaces).await?;
    let ahead = time.duration_since(Timestamp::now());
    let reading = move |lease: Lease| Reading {
        lease,
        now: Timestamp::now().saturating_add(ahead).unwrap_or(Timestamp::MAX),
    };
    let leases: Api<Lease> = match scope.all_namespaces {
        true => Api::all(session.client.clone()),
        false => session.leases.api(),
    };
    let mut config = watcher::Config::default().labels(&scope.selector);
    if let Some(name) = name {
        config = config.fields(&format!("metadata.name={name}"));
    }
    let mut complete = false;
    let changes = watcher(leases, config).backoff(watcher::DefaultBackoff::default());
    Ok(changes.filter_map(move |event| {
        let change = match event {
            Ok(Event::Init) => None,
            // What a watch shows anew after a failure is no beginning.
            Ok(Event::InitApply(lease)) if complete => Some(Ok(Change::Changed(reading(lease)))),
            Ok(Event::InitApply(lease)) => Some(Ok(Change::Begun(reading(lease)))),
            Ok(Event::InitDone) => {
                complete = true;
                Some(Ok(Change::Complete))
            }
            Ok(Event::Apply(lease)) => Some(Ok(Change::Changed(reading(lease)))),
            Ok(Event::Delete(lease)) => Some(Ok(Change::Gone(reading(lease)))),
            Err(error) => trouble(Error::from(error)).map(Err),
        };
        future::ready(change)
    }))
}

/// What of a watch's troubles waiting doesn't help.
fn trouble(error: Error) -> Option<Failure> {
    if !error.is_temporary() {
        return Some(error.into());
    }
    note(format!("{error}; trying again"));
    None
}

/// Shows what happens.
pub(crate) async fn run(args: Args, session: &Session, screen: &mut Screen) -> Outcome {
    let mut changes = std::pin::pin!(changes(session, &args.scope, args.name.as_deref()).await?);
    let mut known: HashMap<String, Lease> = HashMap::new();
    while let Some(change) = changes.next().await {
        let (reading, said) = match change? {
            Change::Begun(reading) => {
                let said = vec![(sentence(&reading), None)];
                (reading, said)
            }
            Change::Changed(reading) => {
                let said = happenings(known.get(&uid(&reading.lease)), &reading);
                (reading, said)
            }
            Change::Gone(reading) => {
                let said = vec![("gone".to_owned(), Some(Colour::Dim))];
                (reading, said)
            }
            Change::Complete => continue,
        };
        let lease = &reading.lease;
        let mut name = name_of(lease).to_owned();
        if args.scope.all_namespaces {
            name = format!("{}/{name}", lease.metadata.namespace.as_deref().unwrap_or_default());
        }
        for (what, colour) in said {
            let time = reading.now.strftime("%H:%M:%SZ").to_string();
            let line = format!(
                "{}  {name}  {}",
                screen.paint(&time, Some(Colour::Dim)),
                screen.paint(&what, colour)
            );
            screen.line(line)?;
        }
        known.insert(uid(lease), reading.lease);
    }
    Ok(())
}

fn uid(lease: &Lease) -> String {
    lease.metadata.uid.clone().unwrap_or_default()
}

/// What happened between two versions of a lease, in words.
fn happenings(old: Option<&Lease>, new: &Reading) -> Vec<(String, Option<Colour>)> {
    let state = new.state();
    let Some(old) = old else { return vec![(sentence(new), Some(colour_of(state)))] };
    let lease = &new.lease;
    let before = Reading { lease: old.clone(), now: new.now };
    let mut said = Vec::new();
    let mut say = |what: String, colour| said.push((what, colour));

    if state != before.state() {
        say(
            match (before.state(), state) {
                (State::Suspended, State::Granted) => format!("resumed, {}", sentence(new)),
                _ => sentence(new),
            },
            Some(colour_of(state)),
        );
    } else if new.granted_ttl() != before.granted_ttl() {
        say(sentence(new), None);
    } else if state.is_active()
        && (lease.spec.renew_time != old.spec.renew_time || lease.spec.ttl_seconds != old.spec.ttl_seconds)
    {
        say("renewed".to_owned(), None);
    }
    if lease.spec.holder != old.spec.holder {
        say(format!("held by {}", lease.spec.holder.as_deref().unwrap_or("nobody")), None);
    }
    let condition = |lease: &Lease, name: &str| -> Option<Condition> {
        let conditions = lease.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().find(|condition| condition.type_ == name).cloned()
    };
    let changed = |name: &str| {
        let now = condition(lease, name);
        let was = condition(old, name);
        let same = |now: &Condition, was: &Condition| now.status == was.status && now.message == was.message;
        now.filter(|now| was.is_none_or(|was| !same(now, &was)))
    };
    if changed(condition::EXPIRING).is_some_and(|expiring| expiring.status == "True") {
        say("expiring".to_owned(), Some(Colour::Yellow));
    }
    if let Some(released) = changed(condition::RELEASED) {
        match released.status.as_str() {
            "True" => say("released".to_owned(), None),
            _ => say(format!("release hindered: {}", released.message), Some(Colour::Red)),
        }
    }
    let count = |lease: &Lease| lease.status.as_ref().and_then(|status| status.attached).unwrap_or_default();
    if count(lease) != count(old) {
        let text = attached(Some(count(lease)));
        say(format!("attached: {}", if text.is_empty() { "nothing" } else { &text }), None);
    }
    said
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(change: impl FnOnce(&mut Value)) -> Lease {
        let mut value = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"name": "a", "uid": "1"},
            "spec": {"ttlSeconds": 30, "renewTime": "2026-01-31T12:00:00Z"},
            "status": {
                "grantedTTLSeconds": 30, "grantTime": "2026-01-31T12:00:00.000000Z",
                "conditions": [{"type": "Active", "status": "True", "reason": "Granted", "message": "",
                                "lastTransitionTime": "2026-01-31T12:00:00Z"}],
            },
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn said(new: impl FnOnce(&mut Value)) -> Vec<String> {
        let new = Reading { lease: lease(new), now: "2026-01-31T12:00:10Z".parse().unwrap() };
        happenings(Some(&lease(|_| {})), &new).into_iter().map(|(what, _)| what).collect()
    }

    #[test]
    fn each_happening_has_its_word() {
        assert_eq!(said(|_| {}), Vec::<String>::new());
        assert_eq!(said(|new| new["spec"]["renewTime"] = json!("2026-01-31T12:00:10Z")), ["renewed"]);
        assert_eq!(said(|new| new["spec"]["holder"] = json!("bob")), ["held by bob"]);
        assert_eq!(
            said(|new| new["status"]["attached"] = json!({"objects": 1, "keys": 2})),
            ["attached: 1 object, 2 keys"]
        );
        assert_eq!(said(|new| new["status"]["grantedTTLSeconds"] = json!(60)), ["granted for 1m, 50s left"]);
        assert_eq!(
            said(|new| new["metadata"]["deletionTimestamp"] = json!("2026-01-31T12:00:10Z")),
            ["being revoked"]
        );
        let ended = |new: &mut Value| {
            new["status"]["endTime"] = json!("2026-01-31T12:00:09.000000Z");
            new["status"]["conditions"][0]["reason"] = json!("Expired");
        };
        assert_eq!(said(ended), ["expired 1s ago"]);
        let hindered = |new: &mut Value| {
            let released = json!({"type": "Released", "status": "False", "reason": "Hindered", "message": "immutable",
                                  "lastTransitionTime": "2026-01-31T12:00:00Z"});
            new["status"]["conditions"].as_array_mut().unwrap().push(released);
        };
        assert_eq!(said(hindered), ["release hindered: immutable"]);
    }
}
