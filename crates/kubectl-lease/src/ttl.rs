//! `kubectl lease ttl` and `kubectl lease tree`: one lease, and what goes with it.

use clap::Args;
use lessor_client::Reading;
use serde_json::json;

use crate::{
    attachments::{Attachments, KindsArgs, lease_name},
    connect::Session,
    error::{Failure, OVER, Outcome},
    output::{Format, Output, Screen, full_name, name_of, sentence},
};

/// Show how long a lease lives: what was granted, and what remains
///
/// Renewals cost the operator no write, so the rest is computed from the server's record of the last one, to
/// the second.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease ttl web-1
  kubectl lease ttl web-1 --attachments
  kubectl lease ttl web-1 -o json | jq .remainingSeconds")]
pub(crate) struct TtlArgs {
    /// The name of the lease
    name: String,

    /// Show what is attached to it, too
    #[arg(long)]
    attachments: bool,

    #[command(flatten)]
    kinds: KindsArgs,

    #[command(flatten)]
    output: Output,
}

/// Show what would go if a lease ended now
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease tree session-42
  kubectl lease tree preview-42 --kinds configmaps,secrets,deployments.apps
  kubectl lease tree preview-42 --all-kinds")]
pub(crate) struct TreeArgs {
    /// The name of the lease
    name: String,

    #[command(flatten)]
    kinds: KindsArgs,
}

/// Shows the rest of a lease.
pub(crate) async fn ttl(args: TtlArgs, session: &Session, screen: &mut Screen) -> Outcome {
    let reading = session.leases.get(&args.name).await?;
    let attachments = match args.attachments {
        true => Some(Attachments::find(session, &args.kinds).await?),
        false => None,
    };
    match (args.output.output, &attachments) {
        (Format::Table | Format::Wide, None) => {
            screen.line(format!("{} {}", full_name(&args.name), sentence(&reading)))?;
        }
        (Format::Table | Format::Wide, Some(attachments)) => attachments.draw(&reading, screen)?,
        (Format::Name, _) => screen.line(full_name(&args.name))?,
        (format, attachments) => {
            let mut value = summary(&reading);
            if let Some(attachments) = attachments {
                value["attached"] = attachments.to_json(&lease_name(&args.name)?);
            }
            screen.value(&value, format)?;
        }
    }
    // Scripts can ask whether a lease holds; people have been told.
    if reading.state().has_ended() { Err(Failure::silent(OVER)) } else { Ok(()) }
}

/// Shows what goes with a lease.
pub(crate) async fn tree(args: TreeArgs, session: &Session, screen: &mut Screen) -> Outcome {
    let reading = session.leases.get(&args.name).await?;
    Attachments::find(session, &args.kinds).await?.draw(&reading, screen)
}

/// What `ttl` says, for programs.
fn summary(reading: &Reading) -> serde_json::Value {
    let status = reading.lease.status.as_ref();
    let seconds = |duration: std::time::Duration| duration.as_secs();
    let mut value = json!({
        "namespace": reading.lease.metadata.namespace,
        "name": name_of(&reading.lease),
        "state": reading.state().to_string(),
        "holder": reading.lease.spec.holder,
        "askedTTLSeconds": reading.lease.spec.ttl_seconds,
        "grantedTTLSeconds": reading.granted_ttl().map(seconds),
        "remainingSeconds": reading.remaining().map(seconds),
        "fencingToken": status.and_then(|status| status.fencing_token),
    });
    if let Some(source) = reading.follows() {
        value["follows"] = json!(source);
        value["following"] = json!(reading.following().map(|following| &following.reason));
    }
    value
}
