//! `kubectl lease ttl`: the granted TTL of a lease, and the remaining time.

use std::time::Duration;

use clap::Args;
use lessor_client::LeaseSnapshot;
use serde_json::json;

use crate::{
    attachments::{AttachedObjects, KindsArgs},
    connect::Session,
    describe::{describe, full_name, lease_name, name_of},
    error::{CliError, CliResult, ENDED},
    printer::{OutputArgs, OutputFormat, Printer},
    tree,
};

/// Show the granted TTL of a lease, and the remaining time
///
/// The operator doesn't update the status at every renewal, so the remaining time is computed from the API
/// server's record of the last renewal, with a resolution of one second.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease ttl web-1
  kubectl lease ttl web-1 --attachments
  kubectl lease ttl web-1 -o json | jq .remainingSeconds")]
pub(crate) struct TtlArgs {
    /// Name of the lease
    name: String,

    /// Show what is attached to the lease
    #[arg(long)]
    attachments: bool,

    #[command(flatten)]
    kinds: KindsArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: TtlArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let snapshot = session.leases.get(&args.name).await?;
    let attached = match args.attachments {
        true => Some(AttachedObjects::list(session, &args.kinds).await?),
        false => None,
    };
    match (args.output.output, &attached) {
        (OutputFormat::Table | OutputFormat::Wide, None) => {
            printer.line(format!("{} {}", full_name(&args.name), describe(&snapshot)))?;
        }
        (OutputFormat::Table | OutputFormat::Wide, Some(attached)) => {
            tree::print(&snapshot, attached, printer)?;
        }
        (OutputFormat::Name, _) => printer.line(full_name(&args.name))?,
        (format, attached) => {
            let mut value = summary(&snapshot);
            if let Some(attached) = attached {
                value["attached"] = attached.to_json(&lease_name(&args.name)?);
            }
            printer.value(&value, format)?;
        }
    }
    // The output shows the end; the exit code is for scripts.
    if snapshot.state().has_ended() { Err(CliError::silent(ENDED)) } else { Ok(()) }
}

/// The lease in JSON.
fn summary(snapshot: &LeaseSnapshot) -> serde_json::Value {
    let status = snapshot.lease.status.as_ref();
    let seconds = |duration: Duration| duration.as_secs();
    let mut value = json!({
        "namespace": snapshot.lease.metadata.namespace,
        "name": name_of(&snapshot.lease),
        "state": snapshot.state().to_string(),
        "holder": snapshot.lease.spec.holder,
        "requestedTTLSeconds": snapshot.lease.spec.ttl_seconds,
        "grantedTTLSeconds": snapshot.granted_ttl().map(seconds),
        "remainingSeconds": snapshot.remaining().map(seconds),
        "fencingToken": status.and_then(|status| status.fencing_token),
    });
    if let Some(source) = snapshot.follows() {
        value["follows"] = json!(source);
        value["following"] = json!(snapshot.following().map(|following| &following.reason));
    }
    value
}
