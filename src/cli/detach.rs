//! `lessor detach-finalizers`: removes the finalizer from leases, so that they can be deleted without an operator.

use std::{io::Write, time::Duration};

use anyhow::Context;
use clap::Args;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use lessor_api::{Lease, lease::FINALIZER};
use lessor_core::request::FIELD_MANAGER;
use serde_json::json;

use super::{access::AccessArgs, name, run::duration};

/// How many leases one list request returns.
const PAGE: u32 = 500;

/// For use after the operator was uninstalled: a running operator adds the finalizer again. Attached objects stay.
#[derive(Args, Debug)]
pub(crate) struct DetachArgs {
    /// Namespace of the leases. Repeatable. Default: all namespaces.
    #[arg(long = "namespace", short, env = "LESSOR_NAMESPACES", value_delimiter = ',', value_parser = name::namespace)]
    namespaces: Vec<String>,

    /// Continue until no lease has had the finalizer for this long: a stopping replica may add it again.
    #[arg(long, env = "LESSOR_SETTLE", default_value = "0s", value_parser = duration)]
    settle: Duration,

    #[command(flatten)]
    access: AccessArgs,
}

/// Removes the finalizer.
pub(crate) fn run(args: &DetachArgs, mut out: impl Write) -> anyhow::Result<()> {
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
    writeln!(out, "removed the finalizer {FINALIZER} from {detached} leases")?;
    Ok(())
}

/// Goes through all leases once. Returns how many had the finalizer.
async fn pass(client: &Client, api: &Api<Lease>) -> anyhow::Result<usize> {
    let mut found = 0;
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let leases = match api.list_metadata(&page).await {
            Ok(leases) => leases,
            // The CRD isn't installed, so there are no leases.
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
            // The patch replaces the whole list, so it is bound to the version that was read.
            let patch = json!({"metadata": {
                "uid": lease.uid(), "resourceVersion": lease.resource_version(), "finalizers": others,
            }});
            let namespace = lease.namespace().unwrap_or_default();
            let write =
                PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
            match leases.patch_metadata(&lease.name_any(), &write, &Patch::Merge(patch)).await {
                Ok(_) => {}
                // Changed or deleted concurrently: left to the next pass.
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                Err(error) => {
                    let name = lease.name_any();
                    return Err(error)
                        .with_context(|| format!("can't remove the finalizer from {namespace}/{name}"));
                }
            }
        }
        match leases.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}
