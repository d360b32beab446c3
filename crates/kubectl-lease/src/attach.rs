//! `kubectl lease attach` and `kubectl lease detach`.

use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, core::DynamicObject};
use lessor_api::{Attachments, KeyForm};
use lessor_client::{AttachOutcome, AttachTarget, Error};

use crate::{
    connect::Session,
    describe::{full_name, lease_name},
    error::{CliError, CliResult, ENDED, OTHER, note},
    printer::Printer,
    target::{KindResolver, TargetArg},
};

/// Attach objects, or keys of objects, to a lease: they are removed when it ends
///
/// Without keys, the whole object is deleted. With keys after a colon, only these keys are removed. Keys are
/// those of a ConfigMap's or Secret's data; in other kinds they are JSON Pointers, such as
/// /metadata/labels/team.
///
/// The operator removes only what its administrator has made attachable: ConfigMaps, and the kinds of its
/// option `--attachable`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  # Attach a whole ConfigMap
  kubectl lease attach session-42 configmap/session-42

  # Attach two keys
  kubectl lease attach session-42 configmap/sessions:alice,bob

  # Move a key from another lease to this one
  kubectl lease attach session-43 configmap/sessions:alice --overwrite")]
pub(crate) struct AttachArgs {
    /// Name of the lease
    name: String,

    /// Objects, or keys of objects, such as configmap/sessions:alice,bob
    #[arg(required = true, value_name = "KIND/NAME[:KEY,…]")]
    targets: Vec<TargetArg>,

    /// Replace attachments to other leases
    #[arg(long)]
    overwrite: bool,
}

/// Detach objects, or keys of objects, from a lease: they are kept when it ends
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease detach session-42 configmap/session-42
  kubectl lease detach session-42 configmap/sessions:alice")]
pub(crate) struct DetachArgs {
    /// Name of the lease
    name: String,

    /// Objects, or keys of objects; without keys, the object and all its keys
    #[arg(required = true, value_name = "KIND/NAME[:KEY,…]")]
    targets: Vec<TargetArg>,
}

pub(crate) async fn attach(args: AttachArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let snapshot = session.leases.get(&args.name).await?;
    if !snapshot.state().is_active() {
        return Err(CliError::from(Error::Ended).with_code(ENDED).about(full_name(&args.name)));
    }
    let mut kinds = KindResolver::new(&session.client);
    for arg in &args.targets {
        let target = arg.resolve(&mut kinds).await?;
        let before = check(session, &target, arg).await?;
        if let Some(other) = before.iter().find(|other| **other != args.name)
            && !args.overwrite
        {
            return Err(CliError::new(
                OTHER,
                format!(
                    "{} is attached to {}: use --overwrite to replace that",
                    notation(&target, arg),
                    full_name(other)
                ),
            ));
        }
        let outcome = session.leases.attach(&args.name, &target, arg.keys()).await?;
        printer.line(describe_outcome(&target, arg, &outcome))?;
    }
    Ok(())
}

pub(crate) async fn detach(args: DetachArgs, session: &Session, printer: &mut Printer) -> CliResult {
    lease_name(&args.name)?;
    let mut kinds = KindResolver::new(&session.client);
    for arg in &args.targets {
        let target = arg.resolve(&mut kinds).await?;
        let changed = session.leases.detach(&args.name, &target, arg.keys()).await?;
        let result = if changed { "detached" } else { "was not attached" };
        printer.line(format!("{} {result}", notation(&target, arg)))?;
    }
    Ok(())
}

/// Checks that an object exists and its keys are valid, and prints a note about keys that don't exist. Returns the leases to
/// which it, or the keys, are attached.
pub(crate) async fn check(
    session: &Session,
    target: &AttachTarget,
    arg: &TargetArg,
) -> CliResult<Vec<String>> {
    let keys = target.keys(arg.keys())?;
    let objects: Api<DynamicObject> =
        Api::namespaced_with(session.client.clone(), session.leases.namespace(), &target.resource);
    let meta = objects.get_metadata(&target.name).await.map_err(Error::from)?.metadata;
    let form = target.key_form();
    let attachments = Attachments::parse(&meta.annotations.unwrap_or_default(), form);
    if keys.is_empty() {
        return Ok(attachments.whole.iter().map(|lease| lease.to_string()).collect());
    }
    // A missing key is valid, but probably a typo. Secrets aren't read, to leave their values alone.
    if target.resource.kind == "ConfigMap" && form == KeyForm::Data {
        let maps: Api<ConfigMap> = Api::namespaced(session.client.clone(), session.leases.namespace());
        let map = maps.get(&target.name).await.map_err(Error::from)?;
        let exists = |key: &str| {
            map.data.iter().any(|data| data.contains_key(key))
                || map.binary_data.iter().any(|data| data.contains_key(key))
        };
        for key in keys.iter().filter(|key| !exists(key.as_str())) {
            note(format!("{target} has no key {:?} yet; it will be removed if it is added", key.as_str()));
        }
    }
    Ok(attachments
        .keys
        .iter()
        .filter(|(key, _)| keys.contains(*key))
        .map(|(_, lease)| lease.to_string())
        .collect())
}

/// `configmap/sessions:alice attached`.
pub(crate) fn describe_outcome(target: &AttachTarget, arg: &TargetArg, outcome: &AttachOutcome) -> String {
    let mut text = format!("{} attached", notation(target, arg));
    if !outcome.changed {
        text += " already";
    }
    if !outcome.moved_from.is_empty() {
        let from: Vec<_> = outcome.moved_from.iter().map(|lease| full_name(lease.as_str())).collect();
        text += &format!(", no longer to {}", from.join(", "));
    }
    text
}

/// `configmap/sessions:alice,bob`.
fn notation(target: &AttachTarget, arg: &TargetArg) -> String {
    match arg.keys.len() {
        0 => target.to_string(),
        _ => format!("{target}:{}", arg.keys.join(",")),
    }
}
