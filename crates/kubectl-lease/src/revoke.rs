//! `kubectl lease revoke`.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use clap::{ArgAction, Args, builder::NonEmptyStringValueParser};
use lessor_client::{Error, LeaseSnapshot};

use crate::{
    attachments::{AttachedObjects, KindsArgs},
    connect::Session,
    describe::{full_name, name_of},
    duration,
    error::{CliError, CliResult, OTHER, note},
    printer::Printer,
    tree,
};

/// The interval between reads of a lease that is being released.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Revoke leases: end them now, with everything attached to them
///
/// On a terminal, it shows what will be removed and asks for confirmation. It waits until everything is removed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease revoke session-42
  kubectl lease revoke -l team=web --yes
  kubectl lease revoke session-42 --wait=false")]
pub(crate) struct RevokeArgs {
    /// Names of the leases
    #[arg(value_name = "NAME", required_unless_present = "selector", conflicts_with = "selector")]
    names: Vec<String>,

    /// Revoke the leases that match this label selector, such as team=web
    #[arg(long, short = 'l', value_name = "SELECTOR", value_parser = NonEmptyStringValueParser::new())]
    selector: Option<String>,

    /// Don't ask for confirmation
    #[arg(long, short)]
    yes: bool,

    /// Wait until everything attached is removed
    #[arg(
        long,
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true
    )]
    wait: bool,

    /// Maximum time to wait [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = duration::positive)]
    timeout: Option<Duration>,

    #[command(flatten)]
    kinds: KindsArgs,
}

/// Revokes each lease, and reports errors at the end.
pub(crate) async fn run(args: RevokeArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let mut failed: Vec<CliError> = Vec::new();
    let mut leases = Vec::new();
    match &args.selector {
        Some(selector) => leases = session.leases.list(selector, false).await?.leases,
        None => {
            for name in &args.names {
                match session.leases.get(name).await {
                    Ok(snapshot) => leases.push(snapshot),
                    Err(error) => failed.push(error.into()),
                }
            }
        }
    }
    if leases.is_empty() && failed.is_empty() {
        note(format!("no leases match the selector in namespace {}", session.leases.namespace()));
    }
    if !leases.is_empty()
        && !args.yes
        && io::stdin().is_terminal()
        && !confirmed(&args, session, printer, &leases).await?
    {
        return Err(CliError::new(OTHER, "nothing was revoked"));
    }
    for snapshot in &leases {
        if let Err(error) = revoke(&args, session, printer, snapshot).await {
            failed.push(error);
        }
    }
    let last = failed.pop();
    failed.iter().for_each(CliError::report);
    last.map_or(Ok(()), Err)
}

/// Prints what will be removed, and asks for confirmation.
async fn confirmed(
    args: &RevokeArgs,
    session: &Session,
    printer: &mut Printer,
    leases: &[LeaseSnapshot],
) -> CliResult<bool> {
    let attached = AttachedObjects::list(session, &args.kinds).await?;
    for snapshot in leases {
        tree::print(snapshot, &attached, printer)?;
    }
    let subject = match leases.len() {
        1 => "this lease".to_owned(),
        count => format!("these {count} leases"),
    };
    let mut err = io::stderr().lock();
    write!(err, "Revoke {subject} and remove everything attached? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

async fn revoke(
    args: &RevokeArgs,
    session: &Session,
    printer: &mut Printer,
    snapshot: &LeaseSnapshot,
) -> CliResult {
    let name = name_of(&snapshot.lease);
    match session.leases.revoke(name, snapshot.lease.metadata.uid.as_deref()).await {
        // A conflict means that another lease has its name by now.
        Err(Error::NotFound(_) | Error::Conflict(_)) => {
            return Ok(printer.line(format!("{} is gone already", full_name(name)))?);
        }
        revoked => revoked?,
    }
    let result = if snapshot.state().has_ended() { "deleted; it had ended before" } else { "revoked" };
    printer.line(format!("{} {result}", full_name(name)))?;
    if !args.wait {
        return Ok(());
    }
    let gone = tokio::time::timeout(args.timeout.unwrap_or(Duration::MAX), released(session, snapshot)).await;
    gone.unwrap_or_else(|_| {
        Err(CliError::new(OTHER, "revoked, but not everything attached is removed yet")
            .about(full_name(name)))
    })
}

/// Waits until a lease is gone, and prints what hinders its release.
async fn released(session: &Session, snapshot: &LeaseSnapshot) -> CliResult {
    let (name, uid) = (name_of(&snapshot.lease), &snapshot.lease.metadata.uid);
    let hindrances = async {
        let mut reported = None;
        loop {
            tokio::time::sleep(READ_INTERVAL).await;
            let Ok(snapshot) = session.leases.get(name).await else { continue };
            // Another lease may have this name by now.
            if snapshot.lease.metadata.uid != *uid {
                return;
            }
            let hindrance = snapshot.hindrance().map(str::to_owned);
            if hindrance != reported
                && let Some(hindrance) = &hindrance
            {
                note(format!("the release of {} is hindered: {hindrance}", full_name(name)));
            }
            reported = hindrance;
        }
    };
    tokio::select! {
        gone = session.leases.wait_gone(name) => Ok(gone?),
        () = hindrances => Ok(()),
    }
}
