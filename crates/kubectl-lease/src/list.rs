//! `kubectl lease list`.

use std::{collections::HashSet, time::Duration};

use clap::{Args as ClapArgs, ValueEnum};
use futures::StreamExt;
use lessor_api::lease::Attached;
use lessor_client::Reading;

use crate::{
    connect::Session,
    duration::short,
    error::Outcome,
    output::{Cell, Format, Output, Screen, Table, colour_of, full_name, json_of, list_of, name_of},
    watch::{self, Change},
};

/// List leases, with what remains of them
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease list
  kubectl lease list -A --sort-by remaining
  kubectl lease list -l team=web -o name")]
pub(crate) struct Args {
    #[command(flatten)]
    scope: Scope,

    /// What comes first
    #[arg(long, value_enum, default_value_t = SortBy::Name)]
    sort_by: SortBy,

    /// Go on, with a line for each change
    #[arg(long, short)]
    watch: bool,

    #[command(flatten)]
    output: Output,
}

/// Which leases.
#[derive(ClapArgs, Debug, Clone, Default)]
pub(crate) struct Scope {
    /// Leases of all namespaces
    #[arg(long, short = 'A')]
    pub(crate) all_namespaces: bool,

    /// Only leases with these labels, like team=web
    #[arg(long, short = 'l', value_name = "LABELS", default_value = "")]
    pub(crate) selector: String,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum SortBy {
    Name,
    /// What ends first
    Remaining,
    Ttl,
    Holder,
    State,
    /// The oldest
    Age,
}

/// Lists leases.
pub(crate) async fn run(args: Args, session: &Session, screen: &mut Screen) -> Outcome {
    let listing = session.leases.list(&args.scope.selector, args.scope.all_namespaces).await?;
    let mut readings = listing.readings;
    sort(&mut readings, args.sort_by);
    let format = args.output.output;
    match format {
        Format::Name => {
            readings.iter().try_for_each(|reading| screen.line(full_name(name_of(&reading.lease))))?
        }
        Format::Json | Format::Yaml => {
            let items: Outcome<_> = readings.iter().map(|reading| json_of(&reading.lease)).collect();
            screen.value(&list_of(items?), format)?;
        }
        Format::Table | Format::Wide if readings.is_empty() && !args.watch => {
            let place = match args.scope.all_namespaces {
                true => "in any namespace".to_owned(),
                false => format!("in namespace {}", session.leases.namespace()),
            };
            // Like kubectl: a table without rows is no output, so that scripts can count lines.
            crate::error::note(format!("no leases {place}"));
        }
        Format::Table | Format::Wide => {
            let shape = Shape {
                namespaces: args.scope.all_namespaces,
                // Where nobody follows anything, there is no column for it.
                follows: readings.iter().any(|reading| reading.follows().is_some()),
                wide: format == Format::Wide,
            };
            let mut table = Table::new(shape.columns());
            readings.iter().for_each(|reading| table.push(shape.row(reading)));
            screen.table(&table)?;
            if args.watch {
                return follow(&args, session, screen, shape, &table.widths(), &readings).await;
            }
        }
    }
    Ok(())
}

/// One more row for each change of what the table has shown.
async fn follow(
    args: &Args,
    session: &Session,
    screen: &mut Screen,
    shape: Shape,
    widths: &[usize],
    shown: &[Reading],
) -> Outcome {
    let version = |reading: &Reading| reading.lease.metadata.resource_version.clone();
    let shown: HashSet<_> = shown.iter().map(version).collect();
    let mut changes = std::pin::pin!(watch::changes(session, &args.scope, None).await?);
    while let Some(change) = changes.next().await {
        match change? {
            Change::Begun(reading) if shown.contains(&version(&reading)) => {}
            Change::Begun(reading) | Change::Changed(reading) | Change::Gone(reading) => {
                screen.row(&shape.row(&reading), widths)?;
            }
            Change::Complete => {}
        }
    }
    Ok(())
}

fn sort(readings: &mut [Reading], by: SortBy) {
    // What has no deadline comes last.
    let remaining = |reading: &Reading| reading.remaining().unwrap_or(Duration::MAX);
    readings.sort_by_cached_key(|reading| {
        (reading.lease.metadata.namespace.clone(), reading.lease.metadata.name.clone())
    });
    match by {
        SortBy::Name => {}
        SortBy::Remaining => readings.sort_by_key(remaining),
        SortBy::Ttl => readings.sort_by_key(Reading::granted_ttl),
        SortBy::Holder => readings.sort_by_key(|reading| reading.lease.spec.holder.clone()),
        SortBy::State => readings.sort_by_key(Reading::state),
        SortBy::Age => readings.sort_by_key(|reading| std::cmp::Reverse(reading.age())),
    }
}

/// Which columns a table of leases has.
#[derive(Clone, Copy, Debug)]
struct Shape {
    namespaces: bool,
    follows: bool,
    wide: bool,
}

impl Shape {
    fn columns(self) -> Vec<&'static str> {
        let mut columns = vec!["NAME", "TTL", "REMAINING", "HOLDER", "STATE", "ATTACHED", "AGE"];
        if self.follows {
            columns.insert(columns.len() - 1, "FOLLOWS");
        }
        if self.namespaces {
            columns.insert(0, "NAMESPACE");
        }
        if self.wide {
            columns.extend(["EXPIRES", "TOKEN", "PRIMARY", "TERM"]);
        }
        columns
    }

    fn row(self, reading: &Reading) -> Vec<Cell> {
        let (lease, status) = (&reading.lease, reading.lease.status.as_ref());
        let text = |duration: Option<Duration>| Cell::new(duration.map(short).unwrap_or_default());
        let state = reading.state();
        let mut row = vec![
            Cell::new(name_of(lease)),
            text(reading.granted_ttl()),
            text(reading.remaining()),
            Cell::new(lease.spec.holder.clone().unwrap_or_default()),
            Cell::new(state.to_string()).coloured(Some(colour_of(state))),
            Cell::new(attached(status.and_then(|status| status.attached))),
            text(reading.age()),
        ];
        if self.follows {
            row.insert(row.len() - 1, Cell::new(reading.follows().unwrap_or_default().to_owned()));
        }
        if self.namespaces {
            row.insert(0, Cell::new(lease.metadata.namespace.clone().unwrap_or_default()));
        }
        if self.wide {
            let number =
                |number: Option<i64>| Cell::new(number.map(|number| number.to_string()).unwrap_or_default());
            let expiry = status.and_then(|status| status.expiry_time.as_ref());
            row.push(Cell::new(
                expiry.map(|time| time.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default(),
            ));
            row.push(number(status.and_then(|status| status.fencing_token)));
            row.push(Cell::new(status.and_then(|status| status.primary.clone()).unwrap_or_default()));
            row.push(number(status.and_then(|status| status.term)));
        }
        row
    }
}

/// How much is attached, for people: `2 objects, 1 key`.
pub(crate) fn attached(attached: Option<Attached>) -> String {
    let count = |count: i64, one: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{count} {one}s")),
    };
    let Attached { objects, keys } = attached.unwrap_or_default();
    [count(objects, "object"), count(keys, "key")].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
