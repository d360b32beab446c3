//! `lessor detach-finalizers`: leases that can be deleted without an operator.

use std::{io::Write, time::Duration};

use anyhow::Context;
use clap::Args as ClapArgs;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use lessor_api::{Lease, lease::FINALIZER};
use lessor_core::request::FIELD_MANAGER;
use serde_json::json;

use super::{access::Access, name, run::duration};

/// How many leases are read at once.
const PAGE: u32 = 500;

/// Run it when the operator is gone for good: one that runs puts the finalizer back. What is attached to the leases
/// stays.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// A namespace to go through; may be given several times. Default: all.
    #[arg(long = "namespace", short, env = "LESSOR_NAMESPACES", value_delimiter = ',', value_parser = name::namespace)]
    namespaces: Vec<String>,

    /// Go on until no lease has had the finalizer for this long: a replica that still stops may put it back.
    #[arg(long, env = "LESSOR_SETTLE", default_value = "0s", value_parser = duration)]
    settle: Duration,

    #[command(flatten)]
    access: Access,
}

/// Takes the finalizer off.
pub(crate) fn run(args: &Args, mut out: impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("can't start")?;
    let detached = runtime.block_on(async {
        let client = args.access.client().await?;
        let apis: Vec<Api<Lease>> = match args.namespaces.as_slice() {
            [] => vec![Api::all(client.clone())],
            namespaces => namespaces.iter().map(|name| Api::namespaced(client.clone(), name)).collect(),
        };
        let (mut detached, mut settled) = (0, args.settle.is_zero());
        loop {
            let mut found = 0;
            for api in &apis {
                found += pass(&client, api).await?;
            }
            detached += found;
            match (found, settled) {
                (0, true) => return anyhow::Ok(detached),
                (0, false) => {
                    settled = true;
                    tokio::time::sleep(args.settle).await;
                }
                _ => settled = args.settle.is_zero(),
            }
        }
    })?;
    writeln!(out, "took the finalizer {FINALIZER} off {detached} leases")?;
    Ok(())
}

/// Goes through all leases once. Answers how many had the finalizer.
async fn pass(client: &Client, api: &Api<Lease>) -> anyhow::Result<usize> {
    let mut found = 0;
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let leases = match api.list_metadata(&page).await {
            Ok(leases) => leases,
            // No such kind (any more), no leases.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(found),
            Err(error) => return Err(error).context("can't list leases"),
        };
        for lease in &leases.items {
            let finalizers = lease.finalizers();
            if !finalizers.iter().any(|name| name == FINALIZER) {
                continue;
            }
            found += 1;
            let others: Vec<&String> = finalizers.iter().filter(|name| *name != FINALIZER).collect();
            // The list is replaced as a whole, so it must be the one that was read.
            let patch = json!({"metadata": {
                "uid": lease.uid(), "resourceVersion": lease.resource_version(), "finalizers": others,
            }});
            let namespace = lease.namespace().unwrap_or_default();
            let write =
                PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
            match leases.patch_metadata(&lease.name_any(), &write, &Patch::Merge(patch)).await {
                Ok(_) => {}
                // Changed or gone meanwhile: the next pass sees.
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                Err(error) => {
                    let name = lease.name_any();
                    return Err(error)
                        .with_context(|| format!("can't take the finalizer off {namespace}/{name}"));
                }
            }
        }
        match leases.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}
