//! `kubectl lease status`.

use std::time::Duration;

use clap::Args as ClapArgs;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, core::ObjectList};
use lessor_api::{GROUP, Lessor, VERSION, lease::following};
use lessor_client::{Error, Listing, Reading, State};
use serde_json::json;

use crate::{
    connect::Session,
    duration::short,
    error::{ATTENTION, Failure, Outcome, note},
    output::{Cell, Colour, Format, Output, Screen, Table, name_of},
};

const LEADERLESS: &str =
    "nobody is primary: leases are neither granted nor ended until a replica of the operator runs";
/// How long a grant, or an end, may be late before it's worth a line: an operator that changes its primary
/// needs this.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why a lease follows in vain, where that doesn't change by itself.
const NEEDS_SOMEBODY: [&str; 4] =
    [following::NOT_ENABLED, following::UNWATCHED, following::CYCLE, following::CHAIN_TOO_LONG];

/// Show who is primary, and what needs attention
///
/// The exit code is 7 if something needs attention: nobody is primary, a release is hindered, a grant or an
/// end is late.
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease status -A
  kubectl lease status -o json | jq '.lessors[].primary'")]
pub(crate) struct Args {
    /// Look at the leases of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,

    #[command(flatten)]
    output: Output,
}

/// Shows the state of things.
pub(crate) async fn run(args: Args, session: &Session, screen: &mut Screen) -> Outcome {
    let server = session.client.apiserver_version().await.map_err(Error::from)?;
    let lessors = lessors(session).await?;
    let listing = session.leases.list("", args.all_namespaces).await?;
    let attention = attention(&listing);
    let led = |lessor: &Lessor| {
        lessor
            .status
            .as_ref()
            .and_then(|status| status.primary.as_deref())
            .is_some_and(|name| !name.is_empty())
    };
    let leaderless = lessors.as_ref().is_some_and(|lessors| !lessors.items.iter().any(led));

    match args.output.output {
        Format::Table | Format::Wide | Format::Name => {
            screen.line(format!("kubectl-lease  {}", env!("CARGO_PKG_VERSION")))?;
            screen.line(format!("API server     {}", server.git_version))?;
            screen.line(format!(
                "leases         {GROUP}/{VERSION}, {}",
                counts(&listing, session, args.all_namespaces)
            ))?;
            if let Some(lessors) = &lessors {
                show(lessors, listing.now, screen)?;
            }
            if leaderless {
                screen.line(screen.paint(LEADERLESS, Some(Colour::Red)))?;
            }
            for (reading, what) in &attention {
                let namespace = reading.lease.metadata.namespace.as_deref().unwrap_or_default();
                let line = format!("{namespace}/{}: {what}", name_of(&reading.lease));
                screen.line(screen.paint(&line, Some(Colour::Red)))?;
            }
        }
        format => {
            let trouble = |(reading, what): &(&Reading, String)| {
                let metadata = &reading.lease.metadata;
                json!({"namespace": metadata.namespace, "name": metadata.name, "message": what})
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
                "leases": listing.readings.len(),
                "attention": attention.iter().map(trouble).collect::<Vec<_>>(),
            });
            screen.value(&value, format)?;
        }
    }
    if leaderless || !attention.is_empty() { Err(Failure::silent(ATTENTION)) } else { Ok(()) }
}

/// The installations. `None`: they can't be seen.
async fn lessors(session: &Session) -> Outcome<Option<ObjectList<Lessor>>> {
    match Api::<Lessor>::all(session.client.clone()).list(&Default::default()).await.map_err(Error::from) {
        Ok(lessors) => Ok(Some(lessors)),
        Err(Error::Forbidden(message)) => {
            note(format!("who is primary can't be seen: {message}"));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn show(lessors: &ObjectList<Lessor>, now: Timestamp, screen: &mut Screen) -> Outcome {
    let mut table =
        Table::new(vec!["LESSOR", "PRIMARY", "TERM", "SINCE", "TRANSITIONS", "LEASES", "VERSION"]);
    let mut conditions = Vec::new();
    for lessor in &lessors.items {
        let name = lessor.metadata.name.clone().unwrap_or_default();
        let status = lessor.status.clone().unwrap_or_default();
        let number =
            |number: Option<i64>| Cell::new(number.map(|number| number.to_string()).unwrap_or_default());
        let since = status
            .acquire_time
            .map(|time| Duration::try_from(now.duration_since(time.0)).unwrap_or_default());
        conditions.extend(status.conditions.iter().map(|found| {
            format!("{name}: {}={} ({}) {}", found.type_, found.status, found.reason, found.message)
        }));
        table.push(vec![
            Cell::new(name),
            Cell::new(status.primary.unwrap_or_default()),
            number(status.term),
            Cell::new(since.map(short).unwrap_or_default()),
            number(status.transitions),
            number(status.leases),
            Cell::new(status.version.unwrap_or_default()),
        ]);
    }
    screen.line("")?;
    screen.table(&table)?;
    conditions.iter().try_for_each(|line| screen.line(line))?;
    Ok(())
}

/// `3 in all namespaces: 2 granted, 1 suspended`.
fn counts(listing: &Listing, session: &Session, everywhere: bool) -> String {
    let place = if everywhere {
        "all namespaces".to_owned()
    } else {
        format!("namespace {}", session.leases.namespace())
    };
    let states =
        [State::Pending, State::Granted, State::Suspended, State::Revoking, State::Expired, State::Revoked];
    let counts: Vec<String> = states
        .into_iter()
        .map(|state| (state, listing.readings.iter().filter(|reading| reading.state() == state).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", state.to_string().to_lowercase()))
        .collect();
    let list = if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) };
    format!("{} in {place}{list}", listing.readings.len())
}

/// Leases that need somebody's attention, and why.
fn attention(listing: &Listing) -> Vec<(&Reading, String)> {
    listing.readings.iter().filter_map(|reading| Some((reading, trouble(reading)?))).collect()
}

fn trouble(reading: &Reading) -> Option<String> {
    if let Some(hindrance) = reading.hindrance() {
        return Some(format!("its release is hindered: {hindrance}"));
    }
    let since = |time: Timestamp| Duration::try_from(reading.now.duration_since(time)).unwrap_or_default();
    match reading.state() {
        State::Pending => {
            let age = reading.age().filter(|age| *age > PATIENCE)?;
            Some(format!("not granted for {}: does an operator serve this namespace?", short(age)))
        }
        // What is missing may come; of these somebody has to do something.
        State::Granted | State::Suspended
            if reading.following().is_some_and(|following| NEEDS_SOMEBODY.contains(&&*following.reason)) =>
        {
            Some(reading.following()?.message.clone())
        }
        State::Granted if reading.remaining() == Some(Duration::ZERO) => {
            let expiry = reading.lease.status.as_ref()?.expiry_time.as_ref()?.0;
            let late = Some(since(expiry)).filter(|late| *late > PATIENCE)?;
            Some(format!("it should have ended {} ago", short(late)))
        }
        State::Revoking => {
            let asked = reading.lease.metadata.deletion_timestamp.as_ref()?.0;
            let late = Some(since(asked)).filter(|late| *late > PATIENCE)?;
            Some(format!("deleted {} ago, and nobody has committed its end", short(late)))
        }
        _ => None,
    }
}
