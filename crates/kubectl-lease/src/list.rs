//! `kubectl lease list`.

use std::{cmp::Reverse, collections::HashSet, pin::pin, time::Duration};

use clap::{Args, ValueEnum};
use futures::StreamExt;
use lessor_api::duration::abbreviated;
use lessor_client::LeaseSnapshot;

use crate::{
    connect::Session,
    describe::{attached_counts, full_name, json_of, name_of, state_style},
    error::{CliResult, note},
    printer::{OutputArgs, OutputFormat, Printer, list_of},
    scope::ScopeArgs,
    table::{Table, TableCell, line},
    watch::{self, LeaseChange},
};

/// List leases with their remaining times
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease list
  kubectl lease list -A --sort-by remaining
  kubectl lease list -l team=web -o name")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    scope: ScopeArgs,

    /// Order of the leases
    #[arg(long, value_enum, default_value_t = SortBy::Name)]
    sort_by: SortBy,

    /// Then print a line for each change
    #[arg(long, short)]
    watch: bool,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum SortBy {
    Name,
    /// Shortest remaining time first
    Remaining,
    Ttl,
    Holder,
    State,
    /// Oldest first
    Age,
}

pub(crate) async fn run(args: ListArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let listing = session.leases.list(&args.scope.selector, args.scope.all_namespaces).await?;
    let mut leases = listing.leases;
    sort(&mut leases, args.sort_by);
    let format = args.output.output;
    match format {
        OutputFormat::Name => {
            leases.iter().try_for_each(|snapshot| printer.line(full_name(name_of(&snapshot.lease))))?;
        }
        OutputFormat::Json | OutputFormat::Yaml => {
            let items: CliResult<_> = leases.iter().map(|snapshot| json_of(&snapshot.lease)).collect();
            printer.value(&list_of(items?), format)?;
        }
        OutputFormat::Table | OutputFormat::Wide if leases.is_empty() && !args.watch => {
            // Like kubectl, to standard error, so that scripts can count lines of the output.
            note(match args.scope.all_namespaces {
                true => "no leases in any namespace".to_owned(),
                false => format!("no leases in namespace {}", session.leases.namespace()),
            });
        }
        OutputFormat::Table | OutputFormat::Wide => {
            let columns = Columns {
                namespace: args.scope.all_namespaces,
                follows: leases.iter().any(|snapshot| snapshot.follows().is_some()),
                wide: format == OutputFormat::Wide,
            };
            let mut table = Table::new(columns.names());
            leases.iter().for_each(|snapshot| table.push(columns.row(snapshot)));
            printer.table(&table)?;
            if args.watch {
                return print_changes(&args, session, printer, columns, &table.widths(), &leases).await;
            }
        }
    }
    Ok(())
}

/// Prints a row for each change since the list.
async fn print_changes(
    args: &ListArgs,
    session: &Session,
    printer: &mut Printer,
    columns: Columns,
    widths: &[usize],
    listed: &[LeaseSnapshot],
) -> CliResult {
    let version = |snapshot: &LeaseSnapshot| snapshot.lease.metadata.resource_version.clone();
    let listed: HashSet<_> = listed.iter().map(version).collect();
    let mut changes = pin!(watch::changes(session, &args.scope, None).await?);
    while let Some(change) = changes.next().await {
        match change? {
            LeaseChange::Initial(snapshot) if listed.contains(&version(&snapshot)) => {}
            LeaseChange::Initial(snapshot)
            | LeaseChange::Changed(snapshot)
            | LeaseChange::Deleted(snapshot) => {
                printer.line(line(&columns.row(&snapshot), widths))?;
            }
        }
    }
    Ok(())
}

fn sort(leases: &mut [LeaseSnapshot], by: SortBy) {
    // Leases without a deadline come last.
    let remaining = |snapshot: &LeaseSnapshot| snapshot.remaining().unwrap_or(Duration::MAX);
    leases.sort_by_cached_key(|snapshot| {
        (snapshot.lease.metadata.namespace.clone(), snapshot.lease.metadata.name.clone())
    });
    match by {
        SortBy::Name => {}
        SortBy::Remaining => leases.sort_by_key(remaining),
        SortBy::Ttl => leases.sort_by_key(LeaseSnapshot::granted_ttl),
        SortBy::Holder => leases.sort_by_key(|snapshot| snapshot.lease.spec.holder.clone()),
        SortBy::State => leases.sort_by_key(LeaseSnapshot::state),
        SortBy::Age => leases.sort_by_key(|snapshot| Reverse(snapshot.age())),
    }
}

/// The optional columns of a table of leases.
#[derive(Clone, Copy, Debug)]
struct Columns {
    namespace: bool,
    follows: bool,
    wide: bool,
}

impl Columns {
    fn names(self) -> Vec<&'static str> {
        let mut columns = vec!["NAME", "TTL", "REMAINING", "HOLDER", "STATE", "ATTACHED", "AGE"];
        if self.follows {
            columns.insert(columns.len() - 1, "FOLLOWS");
        }
        if self.namespace {
            columns.insert(0, "NAMESPACE");
        }
        if self.wide {
            columns.extend(["EXPIRES", "TOKEN", "PRIMARY", "TERM"]);
        }
        columns
    }

    fn row(self, snapshot: &LeaseSnapshot) -> Vec<TableCell> {
        let (lease, status) = (&snapshot.lease, snapshot.lease.status.as_ref());
        let text = |duration: Option<Duration>| TableCell::new(duration.map(abbreviated).unwrap_or_default());
        let state = snapshot.state();
        let mut row = vec![
            TableCell::new(name_of(lease)),
            text(snapshot.granted_ttl()),
            text(snapshot.remaining()),
            TableCell::new(lease.spec.holder.clone().unwrap_or_default()),
            TableCell::new(state.to_string()).with_style(state_style(state)),
            TableCell::new(attached_counts(status.and_then(|status| status.attached))),
            text(snapshot.age()),
        ];
        if self.follows {
            row.insert(row.len() - 1, TableCell::new(snapshot.follows().unwrap_or_default().to_owned()));
        }
        if self.namespace {
            row.insert(0, TableCell::new(lease.metadata.namespace.clone().unwrap_or_default()));
        }
        if self.wide {
            let expiry = status.and_then(|status| status.expiry_time.as_ref());
            row.push(TableCell::new(
                expiry.map(|time| time.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default(),
            ));
            row.push(TableCell::number(status.and_then(|status| status.fencing_token)));
            row.push(TableCell::new(status.and_then(|status| status.primary.clone()).unwrap_or_default()));
            row.push(TableCell::number(status.and_then(|status| status.term)));
        }
        row
    }
}
