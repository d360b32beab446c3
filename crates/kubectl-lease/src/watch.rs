//! `kubectl lease watch`: changes of leases as they happen.

use std::{collections::HashMap, pin::pin};

use anstyle::Style;
use clap::Args;
use futures::{Stream, StreamExt, future};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher, watcher::Event},
};
use lessor_api::{Lease, lease::condition};
use lessor_client::{Error, LeaseSnapshot, SnapshotState};

use crate::{
    connect::Session,
    describe::{attached_counts, describe, name_of, state_style},
    error::{CliError, CliResult, note},
    printer::Printer,
    scope::ScopeArgs,
    style::{DIMMED, RED, YELLOW, styled},
};

/// Show changes of leases as they happen
///
/// Begins with the existing leases, and continues until Ctrl-C.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease watch
  kubectl lease watch web-1
  kubectl lease watch -A -l team=web")]
pub(crate) struct WatchArgs {
    /// Name of a single lease
    #[arg(conflicts_with_all = ["all_namespaces", "selector"])]
    name: Option<String>,

    #[command(flatten)]
    scope: ScopeArgs,
}

/// A version of a lease in a watch.
pub(crate) enum LeaseChange {
    /// A lease that existed when the watch began.
    Initial(LeaseSnapshot),
    /// A lease that was created or changed.
    Changed(LeaseSnapshot),
    /// The last version of a deleted lease.
    Deleted(LeaseSnapshot),
}

/// Watches leases. Reports and retries temporary errors; ends with the first other error.
pub(crate) async fn changes(
    session: &Session,
    scope: &ScopeArgs,
    name: Option<&str>,
) -> CliResult<impl Stream<Item = CliResult<LeaseChange>> + use<>> {
    // Watch events don't contain the API server's clock.
    let time = session.leases.server_time(scope.all_namespaces).await?;
    let ahead = time.duration_since(Timestamp::now());
    let snapshot = move |lease: Lease| LeaseSnapshot {
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
    let mut initialized = false;
    let changes = watcher(leases, config).backoff(watcher::DefaultBackoff::default());
    Ok(changes.filter_map(move |event| {
        let change = match event {
            Ok(Event::Init) => None,
            Ok(Event::InitApply(lease)) if !initialized => Some(Ok(LeaseChange::Initial(snapshot(lease)))),
            // After a failure, the watch lists all leases again.
            Ok(Event::InitApply(lease) | Event::Apply(lease)) => {
                Some(Ok(LeaseChange::Changed(snapshot(lease))))
            }
            Ok(Event::InitDone) => {
                initialized = true;
                None
            }
            Ok(Event::Delete(lease)) => Some(Ok(LeaseChange::Deleted(snapshot(lease)))),
            Err(error) => permanent(Error::from(error)).map(Err),
        };
        future::ready(change)
    }))
}

/// An error that retries don't help against. Reports all others.
fn permanent(error: Error) -> Option<CliError> {
    if !error.is_temporary() {
        return Some(error.into());
    }
    note(format!("{error}; retrying"));
    None
}

pub(crate) async fn run(args: WatchArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let mut changes = pin!(changes(session, &args.scope, args.name.as_deref()).await?);
    let mut known: HashMap<String, Lease> = HashMap::new();
    while let Some(change) = changes.next().await {
        let (snapshot, differences) = match change? {
            LeaseChange::Initial(snapshot) => {
                let description = vec![(describe(&snapshot), Style::new())];
                (snapshot, description)
            }
            LeaseChange::Changed(snapshot) => {
                let differences = differences(known.get(&uid(&snapshot.lease)), &snapshot);
                (snapshot, differences)
            }
            LeaseChange::Deleted(snapshot) => (snapshot, vec![("deleted".to_owned(), DIMMED)]),
        };
        let lease = &snapshot.lease;
        let mut name = name_of(lease).to_owned();
        if args.scope.all_namespaces {
            name = format!("{}/{name}", lease.metadata.namespace.as_deref().unwrap_or_default());
        }
        for (difference, style) in differences {
            let time = snapshot.now.strftime("%H:%M:%SZ");
            printer.line(format!("{}  {name}  {}", styled(time, DIMMED), styled(difference, style)))?;
        }
        known.insert(uid(lease), snapshot.lease);
    }
    Ok(())
}

fn uid(lease: &Lease) -> String {
    lease.metadata.uid.clone().unwrap_or_default()
}

/// The differences between two versions of a lease, in words.
fn differences(old: Option<&Lease>, new: &LeaseSnapshot) -> Vec<(String, Style)> {
    let state = new.state();
    let Some(old) = old else { return vec![(describe(new), state_style(state))] };
    let lease = &new.lease;
    let before = LeaseSnapshot { lease: old.clone(), now: new.now };
    let plain = Style::new();
    let mut differences = Vec::new();
    let mut add = |text: String, style| differences.push((text, style));

    if state != before.state() {
        let text = match (before.state(), state) {
            (SnapshotState::Suspended, SnapshotState::Granted) => format!("resumed, {}", describe(new)),
            _ => describe(new),
        };
        add(text, state_style(state));
    } else if new.granted_ttl() != before.granted_ttl() {
        add(describe(new), plain);
    } else if state.is_active()
        && (lease.spec.renew_time != old.spec.renew_time || lease.spec.ttl_seconds != old.spec.ttl_seconds)
    {
        add("renewed".to_owned(), plain);
    }
    if lease.spec.holder != old.spec.holder {
        let holder = lease.spec.holder.as_ref();
        add(holder.map_or("no holder".to_owned(), |holder| format!("held by {holder}")), plain);
    }
    let condition = |lease: &Lease, name: &str| -> Option<Condition> {
        let conditions = lease.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().find(|condition| condition.type_ == name).cloned()
    };
    let changed = |name: &str| {
        let (new, old) = (condition(lease, name), condition(old, name));
        let same = |new: &Condition, old: &Condition| new.status == old.status && new.message == old.message;
        new.filter(|new| old.is_none_or(|old| !same(new, &old)))
    };
    if changed(condition::EXPIRING).is_some_and(|expiring| expiring.status == "True") {
        add("expiring".to_owned(), YELLOW);
    }
    if let Some(released) = changed(condition::RELEASED) {
        match released.status.as_str() {
            "True" => add("released".to_owned(), plain),
            _ => add(format!("release hindered: {}", released.message), RED),
        }
    }
    let count = |lease: &Lease| lease.status.as_ref().and_then(|status| status.attached).unwrap_or_default();
    if count(lease) != count(old) {
        let counts = attached_counts(Some(count(lease)));
        add(format!("attached: {}", if counts.is_empty() { "nothing" } else { &counts }), plain);
    }
    differences
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

    fn texts(new: impl FnOnce(&mut Value)) -> Vec<String> {
        let new = LeaseSnapshot { lease: lease(new), now: "2026-01-31T12:00:10Z".parse().unwrap() };
        differences(Some(&lease(|_| {})), &new).into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn each_difference_is_described() {
        assert_eq!(texts(|_| {}), Vec::<String>::new());
        assert_eq!(texts(|new| new["spec"]["renewTime"] = json!("2026-01-31T12:00:10Z")), ["renewed"]);
        assert_eq!(texts(|new| new["spec"]["holder"] = json!("bob")), ["held by bob"]);
        assert_eq!(
            texts(|new| new["status"]["attached"] = json!({"objects": 1, "keys": 2})),
            ["attached: 1 object, 2 keys"]
        );
        assert_eq!(texts(|new| new["status"]["grantedTTLSeconds"] = json!(60)), ["granted for 1m, 50s left"]);
        assert_eq!(
            texts(|new| new["metadata"]["deletionTimestamp"] = json!("2026-01-31T12:00:10Z")),
            ["being revoked"]
        );
        let ended = |new: &mut Value| {
            new["status"]["endTime"] = json!("2026-01-31T12:00:09.000000Z");
            new["status"]["conditions"][0]["reason"] = json!("Expired");
        };
        assert_eq!(texts(ended), ["expired 1s ago"]);
        let hindered = |new: &mut Value| {
            let released = json!({"type": "Released", "status": "False", "reason": "Hindered", "message": "immutable",
                                  "lastTransitionTime": "2026-01-31T12:00:00Z"});
            new["status"]["conditions"].as_array_mut().unwrap().push(released);
        };
        assert_eq!(texts(hindered), ["release hindered: immutable"]);
    }
}
