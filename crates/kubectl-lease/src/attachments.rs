//! What is attached to a lease, and how that is drawn.

use clap::Args;
use kube::core::ApiResource;
use lessor_api::{LeaseName, lease::Attached};
use lessor_client::{AttachedObject, Error, Reading};
use serde_json::{Value, json};

use crate::{
    connect::Session,
    error::{Failure, OTHER, Outcome},
    output::{Colour, Screen, full_name, name_of, sentence},
    target::Kinds,
};

/// Which kinds of objects to look at.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct KindsArgs {
    /// The kinds of objects to look at
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", default_value = "configmaps")]
    kinds: Vec<String>,

    /// Look at every kind that can be listed
    #[arg(long, conflicts_with = "kinds")]
    all_kinds: bool,
}

impl KindsArgs {
    async fn resources(&self, session: &Session) -> Outcome<Vec<ApiResource>> {
        let mut kinds = Kinds::new(&session.client);
        if self.all_kinds {
            return kinds.all().await;
        }
        let mut resources = Vec::new();
        for kind in &self.kinds {
            resources.push(kinds.find(kind).await?);
        }
        Ok(resources)
    }
}

/// Everything in a namespace that is attached to some lease.
pub(crate) struct Attachments {
    objects: Vec<AttachedObject>,
    /// Kinds that couldn't be looked at, and why.
    unseen: Vec<(String, Error)>,
}

impl Attachments {
    /// Looks for everything that is attached.
    pub(crate) async fn find(session: &Session, kinds: &KindsArgs) -> Outcome<Self> {
        let resources = kinds.resources(session).await?;
        let (mut objects, mut unseen) = (Vec::new(), Vec::new());
        for resource in &resources {
            match session.leases.attached(resource).await {
                Ok(found) => objects.extend(found),
                // A kind that this user may not see is expected where all kinds are looked at.
                Err(Error::Forbidden(_) | Error::NotInstalled) if kinds.all_kinds => {}
                Err(error) => unseen.push((resource.plural.clone(), error)),
            }
        }
        Ok(Self { objects, unseen })
    }

    /// What is attached to one lease.
    pub(crate) fn of<'a>(&'a self, lease: &'a LeaseName) -> impl Iterator<Item = &'a AttachedObject> {
        self.objects.iter().filter(move |object| object.is_attached(lease))
    }

    /// Draws a lease with everything that goes when it ends.
    pub(crate) fn draw(&self, reading: &Reading, screen: &mut Screen) -> Outcome {
        let name = lease_name(name_of(&reading.lease))?;
        screen.line(format!("{} ({})", full_name(name.as_str()), sentence(reading)))?;
        let objects: Vec<_> = self.of(&name).collect();
        let mut branches = Vec::new();
        for object in &objects {
            branches.push(branch_of(object, &name, screen));
        }
        for (kind, error) in &self.unseen {
            branches.push((
                screen.paint(&format!("{kind} can't be seen: {error}"), Some(Colour::Yellow)),
                Vec::new(),
            ));
        }
        if let Some(more) = hidden(reading, &objects, &name) {
            branches.push((screen.paint(&more, Some(Colour::Yellow)), Vec::new()));
        }
        if branches.is_empty() {
            screen.line("└── nothing is attached")?;
        }
        let last = branches.len().saturating_sub(1);
        for (i, (text, leaves)) in branches.iter().enumerate() {
            let (fork, bar) = if i == last { ("└──", "    ") } else { ("├──", "│   ") };
            screen.line(format!("{fork} {text}"))?;
            for (j, leaf) in leaves.iter().enumerate() {
                let fork = if j + 1 == leaves.len() { "└──" } else { "├──" };
                screen.line(format!("{bar}{fork} {leaf}"))?;
            }
        }
        Ok(())
    }

    /// The same for programs.
    pub(crate) fn to_json(&self, lease: &LeaseName) -> Value {
        let object = |object: &AttachedObject| {
            let keys: Vec<&str> = object.attachments.keys_of(lease).map(|key| key.as_str()).collect();
            json!({
                "apiVersion": object.target.resource.api_version,
                "kind": object.target.resource.kind,
                "name": object.target.name,
                "whole": object.is_attached_whole(lease),
                "keys": keys,
            })
        };
        self.of(lease).map(object).collect()
    }
}

/// An object and its keys, as branch and leaves.
fn branch_of(object: &AttachedObject, lease: &LeaseName, screen: &Screen) -> (String, Vec<String>) {
    let whole = object.is_attached_whole(lease);
    let mut text = object.target.to_string();
    if object.is_deleting {
        text += &screen.paint(" (being deleted already)", Some(Colour::Dim));
    } else if !whole {
        text += &screen.paint(" (stays, without these keys)", Some(Colour::Dim));
    }
    let keys = object.attachments.keys_of(lease).map(|key| key.to_string());
    let problems = object
        .attachments
        .problems
        .iter()
        .map(|problem| screen.paint(&format!("broken: {problem}"), Some(Colour::Yellow)));
    (text, keys.chain(problems).collect())
}

/// What the primary has counted beyond what was found.
fn hidden(reading: &Reading, objects: &[&AttachedObject], lease: &LeaseName) -> Option<String> {
    let Attached { objects: whole, keys } = reading.lease.status.as_ref()?.attached?;
    let found_whole = objects.iter().filter(|object| object.is_attached_whole(lease)).count();
    let found_keys: usize = objects.iter().map(|object| object.attachments.keys_of(lease).count()).sum();
    let missing =
        |counted: i64, found: usize| counted.saturating_sub(i64::try_from(found).unwrap_or(i64::MAX)).max(0);
    match (missing(whole, found_whole), missing(keys, found_keys)) {
        (0, 0) => None,
        (whole, keys) => Some(format!(
            "and {whole} more objects and {keys} more keys, in kinds not looked at: see them with --all-kinds"
        )),
    }
}

/// Reads the name of a lease.
pub(crate) fn lease_name(name: &str) -> Outcome<LeaseName> {
    LeaseName::parse(name)
        .map_err(|fault| Failure::new(OTHER, format!("{name:?} is no name of a lease: {fault}")))
}
