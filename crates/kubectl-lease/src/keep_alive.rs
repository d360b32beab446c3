//! `kubectl lease renew` and `kubectl lease keep-alive`.

use clap::Args;
use lessor_api::duration::abbreviated;
use lessor_client::{HeldLease, KeepAliveEvent};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    connect::Session,
    describe::{full_name, json_of},
    error::{CliError, CliResult, OTHER, note},
    printer::{OutputArgs, OutputFormat, Printer, list_of},
};

/// Renew leases once
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease renew preview-42
  kubectl lease renew web-1 web-2 -o name")]
pub(crate) struct RenewArgs {
    /// Names of the leases
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Keep a lease alive until Ctrl-C, and print a line for each renewal
///
/// Renews the lease after a third of the TTL, and repeats failed renewals as long as the lease is alive. Exits with
/// an error once the lease is revoked, or couldn't be renewed in time.
///
/// The TTL counts from before each request, so the lease never counts as alive after it has expired on the server.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  # Until Ctrl-C, then let the lease expire
  kubectl lease keep-alive web-1

  # Until Ctrl-C, then revoke the lease
  kubectl lease keep-alive web-1 --revoke

  # From cron
  kubectl lease keep-alive web-1 --once")]
pub(crate) struct KeepAliveArgs {
    /// Name of the lease
    name: String,

    /// Renew once and exit
    #[arg(long, conflicts_with = "revoke")]
    once: bool,

    /// Revoke the lease on Ctrl-C, instead of letting it expire
    #[arg(long)]
    revoke: bool,
}

/// Renews each lease once, and reports errors at the end.
pub(crate) async fn renew(args: RenewArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let mut renewed = Vec::new();
    let mut failed = None;
    for name in &args.names {
        match session.leases.renew(name).await {
            Ok(lease) => match args.output.output {
                OutputFormat::Table | OutputFormat::Wide => printer.line(describe_renewal(&lease))?,
                OutputFormat::Name => printer.line(full_name(name))?,
                OutputFormat::Json | OutputFormat::Yaml => renewed.push(json_of(lease.lease())?),
            },
            Err(error) => {
                let error = CliError::from(error);
                let error = if args.names.len() > 1 { error.about(full_name(name)) } else { error };
                if let Some(earlier) = failed.replace(error) {
                    earlier.report();
                }
            }
        }
    }
    match renewed.len() {
        0 => {}
        1 if args.names.len() == 1 => printer.value(&renewed[0], args.output.output)?,
        _ => printer.value(&list_of(renewed), args.output.output)?,
    }
    failed.map_or(Ok(()), Err)
}

pub(crate) async fn run(args: KeepAliveArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let lease = session.leases.renew(&args.name).await?;
    printer.line(describe_renewal(&lease))?;
    if args.once { Ok(()) } else { keep(lease, args.revoke, printer).await }
}

/// Keeps a lease alive until it is lost, or until Ctrl-C or SIGTERM.
pub(crate) async fn keep(lease: HeldLease, revoke: bool, printer: &mut Printer) -> CliResult {
    let mut stopped = std::pin::pin!(stopped()?);
    let mut alive = lease.keep_alive();
    loop {
        let event = tokio::select! {
            () = &mut stopped => break,
            event = alive.next() => event,
        };
        let lease = alive.lease();
        match event {
            Some(KeepAliveEvent::Renewed { renewals: 0, .. }) | None => {}
            Some(KeepAliveEvent::Renewed { .. }) => printer.line(describe_renewal(&lease))?,
            Some(event @ KeepAliveEvent::Failing { .. }) => report_failure(&event, &lease),
            Some(KeepAliveEvent::Lost(reason)) => {
                return Err(CliError::from(reason).about(full_name(lease.name())));
            }
        }
    }
    let lease = alive.stop();
    if revoke {
        lease.revoke().await?;
        printer.line(format!("{} revoked", full_name(lease.name())))?;
    } else {
        let left = abbreviated(lease.deadline().remaining());
        printer.line(format!("{} expires in {left} or later", full_name(lease.name())))?;
    }
    Ok(())
}

/// Prints a failed renewal to standard error, with the remaining time.
pub(crate) fn report_failure(event: &KeepAliveEvent, lease: &HeldLease) {
    let KeepAliveEvent::Failing { error, next, .. } = event else { return };
    note(format!(
        "{} can't be renewed: {error}; {} left, next attempt in {next:.0?}",
        full_name(lease.name()),
        abbreviated(lease.deadline().remaining()),
    ));
}

fn describe_renewal(lease: &HeldLease) -> String {
    let ttl = abbreviated(lease.ttl());
    let name = full_name(lease.name());
    if lease.is_capped() {
        let left = abbreviated(lease.deadline().remaining());
        return format!("{name} renewed, ttl {ttl}, but its maximum lifetime ends in {left}");
    }
    format!("{name} renewed, ttl {ttl}")
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) fn stopped() -> CliResult<impl Future<Output = ()>> {
    let listen = |kind| {
        signal(kind).map_err(|error| CliError::new(OTHER, format!("can't listen for signals: {error}")))
    };
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
