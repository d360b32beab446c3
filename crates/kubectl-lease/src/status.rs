//! `kubectl lease status`.

use std::time::Duration;

use clap::Args;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{Api, core::ObjectList};
use lessor_api::{GROUP, Lessor, VERSION, duration::abbreviated, lease::following, time};
use lessor_client::{Error, LeaseListing, LeaseSnapshot, SnapshotState};
use serde_json::json;

use crate::{
    connect::Session,
    describe::name_of,
    error::{CliError, CliResult, PROBLEM, note},
    printer::{OutputArgs, OutputFormat, Printer},
    style::{RED, styled},
    table::{Table, TableCell},
};

const NO_PRIMARY: &str =
    "no replica is primary: leases are neither granted nor ended until a replica of the operator runs";
const TOO_OLD: &str = "the API server serves no streaming lists, which the operator needs: Kubernetes 1.34 or later, with the feature gate WatchList";
/// The longest normal delay of a grant or an end, which includes a change of the primary.
const TOLERATED_DELAY: Duration = Duration::from_secs(15);

/// Reasons of the condition `Following` that don't pass without a change by a user.
const PERMANENT_REASONS: [&str; 4] =
    [following::NOT_ENABLED, following::UNWATCHED, following::CYCLE, following::CHAIN_TOO_LONG];

/// Show which replica is primary, and problems of leases
///
/// The exit code is 7 if there is a problem: no replica is primary, a release is hindered, or a grant or an end is
/// overdue.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease status -A
  kubectl lease status -o json | jq '.lessors[].primary'")]
pub(crate) struct StatusArgs {
    /// Leases in all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: StatusArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let server = session.client.apiserver_version().await.map_err(Error::from)?;
    let lessors = lessors(session).await?;
    let listing = session.leases.list("", args.all_namespaces).await?;
    let problems = problems(&listing);
    let has_primary = |lessor: &Lessor| {
        let primary = lessor.status.as_ref().and_then(|status| status.primary.as_deref());
        primary.is_some_and(|name| !name.is_empty())
    };
    let without_primary = lessors.as_ref().is_some_and(|lessors| !lessors.items.iter().any(has_primary));
    // Why, if that can be found out.
    let too_old = match without_primary || !problems.is_empty() {
        true => {
            session.leases.serves_streaming_lists().await.err().map(|error| format!("{TOO_OLD}: {error}"))
        }
        false => None,
    };

    match args.output.output {
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => {
            printer.line(format!("kubectl-lease  {}", env!("CARGO_PKG_VERSION")))?;
            printer.line(format!("API server     {}", server.git_version))?;
            printer.line(format!(
                "leases         {GROUP}/{VERSION}, {}",
                counts(&listing, session, args.all_namespaces)
            ))?;
            if let Some(lessors) = &lessors {
                print_lessors(lessors, listing.now, printer)?;
            }
            if without_primary {
                printer.line(styled(NO_PRIMARY, RED))?;
            }
            if let Some(too_old) = &too_old {
                printer.line(styled(too_old, RED))?;
            }
            for (snapshot, problem) in &problems {
                let namespace = snapshot.lease.metadata.namespace.as_deref().unwrap_or_default();
                let line = format!("{namespace}/{}: {problem}", name_of(&snapshot.lease));
                printer.line(styled(line, RED))?;
            }
        }
        format => {
            let problem = |(snapshot, message): &(&LeaseSnapshot, String)| {
                let metadata = &snapshot.lease.metadata;
                json!({"namespace": metadata.namespace, "name": metadata.name, "message": message})
            };
            let lessor = |lessor: &Lessor| {
                let status = lessor.status.clone().unwrap_or_default();
                json!({"name": lessor.metadata.name, "primary": status.primary, "term": status.term,
                       "acquireTime": status.acquire_time, "transitions": status.transitions,
                       "version": status.version})
            };
            let value = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "serverVersion": server.git_version,
                "lessors": lessors.iter().flat_map(|lessors| &lessors.items).map(lessor).collect::<Vec<_>>(),
                "leases": listing.leases.len(),
                "problems": problems.iter().map(problem).collect::<Vec<_>>(),
            });
            printer.value(&value, format)?;
        }
    }
    if without_primary || !problems.is_empty() { Err(CliError::silent(PROBLEM)) } else { Ok(()) }
}

/// The Lessor objects. `None` if the right to list them is missing.
async fn lessors(session: &Session) -> CliResult<Option<ObjectList<Lessor>>> {
    match Api::<Lessor>::all(session.client.clone()).list(&Default::default()).await.map_err(Error::from) {
        Ok(lessors) => Ok(Some(lessors)),
        Err(Error::Forbidden(message)) => {
            note(format!("the primary is unknown: {message}"));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn print_lessors(lessors: &ObjectList<Lessor>, now: Timestamp, printer: &mut Printer) -> CliResult {
    let mut table =
        Table::new(vec!["LESSOR", "PRIMARY", "TERM", "SINCE", "TRANSITIONS", "LEASES", "VERSION"]);
    let mut conditions = Vec::new();
    for lessor in &lessors.items {
        let name = lessor.metadata.name.clone().unwrap_or_default();
        let status = lessor.status.clone().unwrap_or_default();
        let since = status.acquire_time.map(|since| abbreviated(time::between(since.0, now)));
        conditions.extend(status.conditions.iter().map(|condition| {
            let Condition { type_, status, reason, message, .. } = condition;
            format!("{name}: {type_}={status} ({reason}) {message}")
        }));
        table.push(vec![
            TableCell::new(name),
            TableCell::new(status.primary.unwrap_or_default()),
            TableCell::number(status.term),
            TableCell::new(since.unwrap_or_default()),
            TableCell::number(status.transitions),
            TableCell::number(status.leases),
            TableCell::new(status.version.unwrap_or_default()),
        ]);
    }
    printer.line("")?;
    printer.table(&table)?;
    conditions.iter().try_for_each(|line| printer.line(line))?;
    Ok(())
}

/// `3 in all namespaces: 2 granted, 1 suspended`.
fn counts(listing: &LeaseListing, session: &Session, all_namespaces: bool) -> String {
    let place = if all_namespaces {
        "all namespaces".to_owned()
    } else {
        format!("namespace {}", session.leases.namespace())
    };
    let states = [
        SnapshotState::Pending,
        SnapshotState::Granted,
        SnapshotState::Suspended,
        SnapshotState::Revoking,
        SnapshotState::Expired,
        SnapshotState::Revoked,
    ];
    let counts: Vec<String> = states
        .into_iter()
        .map(|state| (state, listing.leases.iter().filter(|snapshot| snapshot.state() == state).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", state.to_string().to_lowercase()))
        .collect();
    let list = if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) };
    format!("{} in {place}{list}", listing.leases.len())
}

/// Leases with a problem.
fn problems(listing: &LeaseListing) -> Vec<(&LeaseSnapshot, String)> {
    listing.leases.iter().filter_map(|snapshot| Some((snapshot, problem_of(snapshot)?))).collect()
}

fn problem_of(snapshot: &LeaseSnapshot) -> Option<String> {
    if let Some(hindrance) = snapshot.hindrance() {
        return Some(format!("its release is hindered: {hindrance}"));
    }
    let overdue =
        |since: Timestamp| Some(time::between(since, snapshot.now)).filter(|late| *late > TOLERATED_DELAY);
    match snapshot.state() {
        SnapshotState::Pending => {
            let age = snapshot.age().filter(|age| *age > TOLERATED_DELAY)?;
            Some(format!("not granted for {}: does an operator serve this namespace?", abbreviated(age)))
        }
        SnapshotState::Granted | SnapshotState::Suspended
            if snapshot
                .following()
                .is_some_and(|following| PERMANENT_REASONS.contains(&&*following.reason)) =>
        {
            Some(snapshot.following()?.message.clone())
        }
        SnapshotState::Granted if snapshot.remaining() == Some(Duration::ZERO) => {
            let late = overdue(snapshot.lease.status.as_ref()?.expiry_time.as_ref()?.0)?;
            Some(format!("its end is overdue by {}", abbreviated(late)))
        }
        SnapshotState::Revoking => {
            let late = overdue(snapshot.lease.metadata.deletion_timestamp.as_ref()?.0)?;
            Some(format!("deleted {} ago, but not ended by the operator yet", abbreviated(late)))
        }
        _ => None,
    }
}
