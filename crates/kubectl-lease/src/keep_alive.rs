//! `kubectl lease renew` and `kubectl lease keep-alive`.

use std::time::Duration;

use lessor_client::{Beat, HeldLease};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    connect::Session,
    duration::short,
    error::{Failure, OTHER, Outcome, note},
    output::{Format, Output, Screen, full_name, json_of, list_of},
};

/// Renew leases once
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease renew preview-42
  kubectl lease renew web-1 web-2 -o name")]
pub(crate) struct RenewArgs {
    /// Names of leases
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    output: Output,
}

/// Keep a lease alive until Ctrl-C, with a line for each renewal
///
/// It renews at a third of the TTL, and when the API server is away, again and again as long as the lease
/// lives. It fails as soon as the lease is over: when it was revoked, or couldn't be renewed in time.
///
/// Time counts from before each request was sent, so the lease is never taken for alive longer than the
/// server keeps it.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  # Until Ctrl-C; then the lease is left to expire
  kubectl lease keep-alive web-1

  # Until Ctrl-C; then it ends at once
  kubectl lease keep-alive web-1 --revoke

  # From cron
  kubectl lease keep-alive web-1 --once")]
pub(crate) struct Args {
    /// The name of the lease
    name: String,

    /// Renew it once, and be done
    #[arg(long, conflicts_with = "revoke")]
    once: bool,

    /// On Ctrl-C, revoke it instead of leaving it to expire
    #[arg(long)]
    revoke: bool,
}

/// Renews leases once, all that it can.
pub(crate) async fn renew(args: RenewArgs, session: &Session, screen: &mut Screen) -> Outcome {
    let mut renewed = Vec::new();
    let mut failed = None;
    for name in &args.names {
        match session.leases.renew(name).await {
            Ok(held) => match args.output.output {
                Format::Table | Format::Wide => screen.line(renewed_line(&held))?,
                Format::Name => screen.line(full_name(name))?,
                Format::Json | Format::Yaml => renewed.push(json_of(held.lease())?),
            },
            Err(error) => {
                let failure = Failure::from(error);
                let failure = if args.names.len() > 1 { failure.about(full_name(name)) } else { failure };
                if let Some(earlier) = failed.replace(failure) {
                    earlier.report();
                }
            }
        }
    }
    match renewed.len() {
        0 => {}
        1 if args.names.len() == 1 => screen.value(&renewed[0], args.output.output)?,
        _ => screen.value(&list_of(renewed), args.output.output)?,
    }
    failed.map_or(Ok(()), Err)
}

/// Keeps a lease alive.
pub(crate) async fn run(args: Args, session: &Session, screen: &mut Screen) -> Outcome {
    let held = session.leases.renew(&args.name).await?;
    screen.line(renewed_line(&held))?;
    if args.once { Ok(()) } else { keep(held, args.revoke, screen).await }
}

/// Keeps a lease alive until it's lost, or Ctrl-C or SIGTERM come.
pub(crate) async fn keep(held: HeldLease, revoke: bool, screen: &mut Screen) -> Outcome {
    let mut stopped = std::pin::pin!(stopped()?);
    let mut alive = held.keep_alive();
    loop {
        let beat = tokio::select! {
            () = &mut stopped => break,
            beat = alive.next() => beat,
        };
        let held = alive.held();
        match beat {
            Some(Beat::Renewed { renewals: 0, .. }) | None => {}
            Some(Beat::Renewed { .. }) => screen.line(renewed_line(&held))?,
            Some(beat @ Beat::Failing { .. }) => complain(&beat, &held),
            Some(Beat::Lost(lost)) => return Err(Failure::from(lost).about(full_name(held.name()))),
        }
    }
    let held = alive.stop();
    if revoke {
        held.revoke().await?;
        screen.line(format!("{} revoked", full_name(held.name())))?;
    } else {
        let left = short(held.deadline().remaining());
        screen
            .line(format!("{} is left to expire, {left} from now at the earliest", full_name(held.name())))?;
    }
    Ok(())
}

/// Tells people that a renewal failed, and how long the lease lives.
pub(crate) fn complain(beat: &Beat, held: &HeldLease) {
    let Beat::Failing { error, next, .. } = beat else { return };
    note(format!(
        "{} can't be renewed: {error}; it lives for {}, next try in {}",
        full_name(held.name()),
        short(held.deadline().remaining()),
        soon(*next),
    ));
}

fn soon(wait: Duration) -> String {
    if wait < Duration::from_secs(1) { format!("{}ms", wait.as_millis()) } else { short(wait) }
}

fn renewed_line(held: &HeldLease) -> String {
    let ttl = short(held.ttl());
    let name = full_name(held.name());
    if held.is_capped() {
        let left = short(held.deadline().remaining());
        return format!("{name} renewed, ttl {ttl}, but its longest lifetime is over in {left}");
    }
    format!("{name} renewed, ttl {ttl}")
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) fn stopped() -> Outcome<impl Future<Output = ()>> {
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::new(OTHER, format!("can't listen for signals: {error}")))
    };
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
