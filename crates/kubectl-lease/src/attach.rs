//! `kubectl lease attach` and `kubectl lease detach`.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, core::DynamicObject};
use lessor_api::{KeyForm, attachment::Attachments};
use lessor_client::{Attachment, Error, Target};

use crate::{
    attachments::lease_name,
    connect::Session,
    error::{Failure, OTHER, OVER, Outcome, note},
    output::{Screen, full_name},
    target::{Kinds, Written},
};

/// Attach objects, or keys of them, to a lease: they go when it ends
///
/// An object goes as a whole; of keys behind a colon, only these go, and the object stays. Keys are those of
/// a ConfigMap's or Secret's data; in other kinds they are JSON pointers, like /metadata/labels/team.
///
/// The operator removes only what its administrator has made attachable: ConfigMaps, and what `--attachable`
/// lists.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  # The whole ConfigMap goes with the lease
  kubectl lease attach session-42 configmap/session-42

  # Only these keys go
  kubectl lease attach session-42 configmap/sessions:alice,bob

  # From another lease to this one
  kubectl lease attach session-43 configmap/sessions:alice --overwrite")]
pub(crate) struct AttachArgs {
    /// The name of the lease
    name: String,

    /// Objects, and keys of them, like configmap/sessions:alice,bob
    #[arg(required = true, value_name = "KIND/NAME[:KEY,…]")]
    targets: Vec<Written>,

    /// Take them away from the lease that they are attached to
    #[arg(long)]
    overwrite: bool,
}

/// Detach objects, or keys of them, from a lease: they stay when it ends
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl lease detach session-42 configmap/session-42
  kubectl lease detach session-42 configmap/sessions:alice")]
pub(crate) struct DetachArgs {
    /// The name of the lease
    name: String,

    /// Objects, and keys of them; without keys, whatever of the object is attached to this lease
    #[arg(required = true, value_name = "KIND/NAME[:KEY,…]")]
    targets: Vec<Written>,
}

/// Attaches.
pub(crate) async fn attach(args: AttachArgs, session: &Session, screen: &mut Screen) -> Outcome {
    let reading = session.leases.get(&args.name).await?;
    if !reading.state().is_active() {
        return Err(Failure::from(Error::Ended).with_code(OVER).about(full_name(&args.name)));
    }
    let mut kinds = Kinds::new(&session.client);
    for written in &args.targets {
        let target = written.resolve(&mut kinds).await?;
        let before = check(session, &target, written).await?;
        if let Some(other) = before.iter().find(|other| **other != args.name)
            && !args.overwrite
        {
            return Err(Failure::new(
                OTHER,
                format!(
                    "{} is attached to {}: take it away with --overwrite",
                    described(&target, written),
                    full_name(other)
                ),
            ));
        }
        let attached = session.leases.attach(&args.name, &target, written.keys()).await?;
        screen.line(sentence(&target, written, &attached))?;
    }
    Ok(())
}

/// Detaches.
pub(crate) async fn detach(args: DetachArgs, session: &Session, screen: &mut Screen) -> Outcome {
    lease_name(&args.name)?;
    let mut kinds = Kinds::new(&session.client);
    for written in &args.targets {
        let target = written.resolve(&mut kinds).await?;
        let changed = session.leases.detach(&args.name, &target, written.keys()).await?;
        let what = if changed { "detached" } else { "was not attached" };
        screen.line(format!("{} {what}", described(&target, written)))?;
    }
    Ok(())
}

/// Whether an object is there, and its keys can be keys; tells of keys that aren't there yet. Answers with
/// the leases that it, or they, are attached to.
pub(crate) async fn check(session: &Session, target: &Target, written: &Written) -> Outcome<Vec<String>> {
    let keys = target.keys(written.keys())?;
    let objects: Api<DynamicObject> =
        Api::namespaced_with(session.client.clone(), session.leases.namespace(), &target.resource);
    let meta = objects.get_metadata(&target.name).await.map_err(Error::from)?.metadata;
    let form = target.key_form();
    let attachments = Attachments::parse(&meta.annotations.unwrap_or_default(), form);
    if keys.is_empty() {
        return Ok(attachments.whole.iter().map(|lease| lease.to_string()).collect());
    }
    // A key may come later, but a typing error is likelier. Values of Secrets are nobody's business here.
    if target.resource.kind == "ConfigMap" && form == KeyForm::Data {
        let maps: Api<ConfigMap> = Api::namespaced(session.client.clone(), session.leases.namespace());
        let map = maps.get(&target.name).await.map_err(Error::from)?;
        let is_there = |key: &str| {
            map.data.iter().any(|data| data.contains_key(key))
                || map.binary_data.iter().any(|data| data.contains_key(key))
        };
        for key in keys.iter().filter(|key| !is_there(key.as_str())) {
            note(format!(
                "{target} has no key {:?} yet: attached, it goes with the lease once it's there",
                key.as_str()
            ));
        }
    }
    Ok(attachments
        .keys
        .iter()
        .filter(|(key, _)| keys.contains(*key))
        .map(|(_, lease)| lease.to_string())
        .collect())
}

/// What attaching did.
pub(crate) fn sentence(target: &Target, written: &Written, attached: &Attachment) -> String {
    let mut text = format!("{} attached", described(target, written));
    if !attached.changed {
        text += " already";
    }
    if !attached.moved_from.is_empty() {
        let from: Vec<_> = attached.moved_from.iter().map(|lease| full_name(lease.as_str())).collect();
        text += &format!(", no longer to {}", from.join(", "));
    }
    text
}

fn described(target: &Target, written: &Written) -> String {
    match written.keys.len() {
        0 => target.to_string(),
        _ => format!("{target}:{}", written.keys.join(",")),
    }
}
