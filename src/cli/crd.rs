//! `lessor crd`: the custom resource definitions as YAML.

use std::io::Write;

use clap::{Args as ClapArgs, ValueEnum};
use lessor_api::crd;

/// Which definitions to print.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// Only the definition of this resource; both without it.
    #[arg(value_enum)]
    resource: Option<Resource>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Resource {
    Leases,
    Lessors,
}

/// Prints what was asked for.
pub(crate) fn run(args: &Args, mut out: impl Write) -> anyhow::Result<()> {
    let crds = match args.resource {
        None => crd::all().to_vec(),
        Some(Resource::Leases) => vec![crd::lease()],
        Some(Resource::Lessors) => vec![crd::lessor()],
    };
    for crd in crds {
        write!(out, "{}", crd::to_yaml(&crd)?)?;
    }
    Ok(())
}
