//! `kubectl lease revoke`.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use clap::{ArgAction, Args as ClapArgs, builder::NonEmptyStringValueParser};
use lessor_client::{Error, Reading};

use crate::{
    attachments::{Attachments, KindsArgs},
    connect::Session,
    duration,
    error::{Failure, OTHER, Outcome, note},
    output::{Screen, full_name, name_of},
};

/// How often a release that takes long is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Revoke leases: end them now, with everything attached to them
///
/// On a terminal it shows what will go, and asks. It waits until all of that is gone.
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease revoke session-42
  kubectl lease revoke -l team=web --yes
  kubectl lease revoke session-42 --wait=false")]
pub(crate) struct Args {
    /// Names of leases
    #[arg(value_name = "NAME", required_unless_present = "selector", conflicts_with = "selector")]
    names: Vec<String>,

    /// All leases with these labels, like team=web
    #[arg(long, short = 'l', value_name = "LABELS", value_parser = NonEmptyStringValueParser::new())]
    selector: Option<String>,

    /// Don't ask
    #[arg(long, short)]
    yes: bool,

    /// Wait until everything that was attached is gone
    #[arg(
        long,
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true
    )]
    wait: bool,

    /// How long to wait at most. Default: as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,

    #[command(flatten)]
    kinds: KindsArgs,
}

/// Revokes leases, all that it can.
pub(crate) async fn run(args: Args, session: &Session, screen: &mut Screen) -> Outcome {
    let mut failed: Vec<Failure> = Vec::new();
    let mut leases = Vec::new();
    match &args.selector {
        Some(selector) => leases = session.leases.list(selector, false).await?.readings,
        None => {
            for name in &args.names {
                match session.leases.get(name).await {
                    Ok(reading) => leases.push(reading),
                    Err(error) => failed.push(error.into()),
                }
            }
        }
    }
    if leases.is_empty() && failed.is_empty() {
        note(format!("no leases with these labels in namespace {}", session.leases.namespace()));
    }
    if !leases.is_empty()
        && !args.yes
        && io::stdin().is_terminal()
        && !agreed(&args, session, screen, &leases).await?
    {
        return Err(Failure::new(OTHER, "nothing was revoked"));
    }
    for reading in &leases {
        if let Err(failure) = revoke(&args, session, screen, reading).await {
            failed.push(failure);
        }
    }
    let last = failed.pop();
    failed.iter().for_each(Failure::report);
    last.map_or(Ok(()), Err)
}

/// Shows what will go, and asks.
async fn agreed(args: &Args, session: &Session, screen: &mut Screen, leases: &[Reading]) -> Outcome<bool> {
    let attachments = Attachments::find(session, &args.kinds).await?;
    for reading in leases {
        attachments.draw(reading, screen)?;
    }
    let what = match leases.len() {
        1 => "it".to_owned(),
        count => format!("these {count} leases"),
    };
    let mut err = io::stderr().lock();
    write!(err, "Revoke {what}, with everything shown? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

async fn revoke(args: &Args, session: &Session, screen: &mut Screen, reading: &Reading) -> Outcome {
    let name = name_of(&reading.lease);
    match session.leases.revoke(name, reading.lease.metadata.uid.as_deref()).await {
        // It was there a moment ago; a conflict means that another has its name by now.
        Err(Error::NotFound(_) | Error::Conflict(_)) => {
            return Ok(screen.line(format!("{} is gone already", full_name(name)))?);
        }
        revoked => revoked?,
    }
    let what = if reading.state().has_ended() { "deleted; it had ended before" } else { "revoked" };
    screen.line(format!("{} {what}", full_name(name)))?;
    if !args.wait {
        return Ok(());
    }
    let gone = tokio::time::timeout(args.timeout.unwrap_or(Duration::MAX), released(session, reading)).await;
    gone.unwrap_or_else(|_| {
        Err(Failure::new(OTHER, "it is revoked, but not all of what was attached is gone yet")
            .about(full_name(name)))
    })
}

/// Waits until a lease is gone, and tells what hinders its release.
async fn released(session: &Session, reading: &Reading) -> Outcome {
    let (name, uid) = (name_of(&reading.lease), &reading.lease.metadata.uid);
    let hindrances = async {
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // Another of this name may have been made since.
            let same = |reading: &Reading| reading.lease.metadata.uid == *uid;
            let Ok(reading) = session.leases.get(name).await else { continue };
            if !same(&reading) {
                return;
            }
            let hindrance = reading.hindrance().map(str::to_owned);
            if hindrance != told
                && let Some(hindrance) = &hindrance
            {
                note(format!("{} waits for its release: {hindrance}", full_name(name)));
            }
            told = hindrance;
        }
    };
    tokio::select! {
        gone = session.leases.wait_gone(name) => Ok(gone?),
        () = hindrances => Ok(()),
    }
}
