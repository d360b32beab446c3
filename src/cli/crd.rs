//! `lessor crd`: the CustomResourceDefinitions as YAML.

use std::io::Write;

use clap::{Args, ValueEnum};
use lessor_api::crd;

/// Prints both definitions, or one of them.
#[derive(Args, Debug)]
pub(crate) struct CrdArgs {
    /// Only the definition of this resource.
    #[arg(value_enum)]
    resource: Option<CrdName>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum CrdName {
    Leases,
    Lessors,
}

/// Prints the definitions.
pub(crate) fn run(args: &CrdArgs, mut out: impl Write) -> anyhow::Result<()> {
    let crds = match args.resource {
        None => crd::all().to_vec(),
        Some(CrdName::Leases) => vec![crd::lease()],
        Some(CrdName::Lessors) => vec![crd::lessor()],
    };
    for crd in crds {
        write!(out, "{}", crd::to_yaml(&crd)?)?;
    }
    Ok(())
}
