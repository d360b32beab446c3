//! `kubectl lease tree`: a lease with what is removed when it ends.

use clap::Args;
use lessor_api::{Attached, LeaseName};
use lessor_client::{AttachedObject, LeaseSnapshot};

use crate::{
    attachments::{AttachedObjects, KindsArgs},
    connect::Session,
    describe::{describe, full_name, lease_name, name_of},
    error::CliResult,
    printer::Printer,
    style::{DIMMED, YELLOW, styled},
};

/// Show what is removed when a lease ends
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease tree session-42
  kubectl lease tree preview-42 --kinds configmaps,secrets,deployments.apps
  kubectl lease tree preview-42 --all-kinds")]
pub(crate) struct TreeArgs {
    /// Name of the lease
    name: String,

    #[command(flatten)]
    kinds: KindsArgs,
}

pub(crate) async fn run(args: TreeArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let snapshot = session.leases.get(&args.name).await?;
    print(&snapshot, &AttachedObjects::list(session, &args.kinds).await?, printer)
}

/// Prints a lease with the attached objects and keys as a tree.
pub(crate) fn print(
    snapshot: &LeaseSnapshot,
    attached: &AttachedObjects,
    printer: &mut Printer,
) -> CliResult {
    let name = lease_name(name_of(&snapshot.lease))?;
    printer.line(format!("{} ({})", full_name(name.as_str()), describe(snapshot)))?;
    let objects: Vec<_> = attached.of(&name).collect();
    let mut branches: Vec<_> = objects.iter().map(|object| Branch::of(object, &name)).collect();
    for (kind, error) in &attached.failed_kinds {
        branches.push(Branch::warning(format!("{kind} can't be listed: {error}")));
    }
    branches.extend(not_searched(snapshot, &objects, &name).map(Branch::warning));
    if branches.is_empty() {
        printer.line("└── nothing is attached")?;
    }
    let last = branches.len().saturating_sub(1);
    for (i, Branch { text, leaves }) in branches.iter().enumerate() {
        let (fork, bar) = if i == last { ("└──", "    ") } else { ("├──", "│   ") };
        printer.line(format!("{fork} {text}"))?;
        for (j, leaf) in leaves.iter().enumerate() {
            let fork = if j + 1 == leaves.len() { "└──" } else { "├──" };
            printer.line(format!("{bar}{fork} {leaf}"))?;
        }
    }
    Ok(())
}

/// An object with its keys, or a warning.
struct Branch {
    text: String,
    leaves: Vec<String>,
}

impl Branch {
    fn of(object: &AttachedObject, lease: &LeaseName) -> Self {
        let mut text = object.target.to_string();
        if object.is_deleting {
            text += &styled(" (being deleted)", DIMMED);
        } else if !object.is_attached_whole(lease) {
            text += &styled(" (kept, without these keys)", DIMMED);
        }
        let keys = object.attachments.keys_of(lease).map(ToString::to_string);
        let problems =
            object.attachments.problems.iter().map(|problem| styled(format!("invalid: {problem}"), YELLOW));
        Self { text, leaves: keys.chain(problems).collect() }
    }

    fn warning(text: String) -> Self {
        Self { text: styled(text, YELLOW), leaves: Vec::new() }
    }
}

/// How much the primary has counted beyond the objects that were found.
fn not_searched(snapshot: &LeaseSnapshot, objects: &[&AttachedObject], lease: &LeaseName) -> Option<String> {
    let Attached { objects: whole, keys } = snapshot.lease.status.as_ref()?.attached?;
    let found_whole = objects.iter().filter(|object| object.is_attached_whole(lease)).count();
    let found_keys: usize = objects.iter().map(|object| object.attachments.keys_of(lease).count()).sum();
    let missing =
        |counted: i64, found: usize| counted.saturating_sub(i64::try_from(found).unwrap_or(i64::MAX)).max(0);
    match (missing(whole, found_whole), missing(keys, found_keys)) {
        (0, 0) => None,
        (whole, keys) => Some(format!(
            "and {} in other kinds: use --all-kinds to see them",
            Attached { objects: whole, keys }
        )),
    }
}
