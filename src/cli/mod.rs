//! The commands of `lessor` and their arguments.

mod access;
mod admission;
mod attachable;
mod check;
mod crd;
mod detach;
mod name;
mod rbac;
mod run;
mod telemetry;

use clap::{Parser, Subcommand};

use self::{
    admission::AdmissionArgs, check::CheckArgs, crd::CrdArgs, detach::DetachArgs, rbac::RbacArgs,
    run::RunArgs,
};

/// Lessor: leases for Kubernetes, as etcd has them. Attached objects are deleted when the holder stops renewing.
#[derive(Parser, Debug)]
#[command(name = "lessor", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the admission policy for attachments as YAML: only users who may delete an object may attach it.
    Admission(AdmissionArgs),
    /// Test a running operator: it has to grant a lease, end it, and remove an attached ConfigMap.
    Check(CheckArgs),
    /// Print the CustomResourceDefinitions as YAML.
    Crd(CrdArgs),
    /// Remove the finalizer from leases, so that they can be deleted after the operator was uninstalled.
    DetachFinalizers(DetachArgs),
    /// Print the roles that the operator needs as YAML, for the same settings as those of `run`.
    Rbac(Box<RbacArgs>),
    /// Run one replica of the operator.
    Run(Box<RunArgs>),
    /// Print the version.
    Version,
}

impl Cli {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Admission(args) => admission::run(args, std::io::stdout().lock()),
            Command::Check(args) => check::run(&args, std::io::stdout().lock()),
            Command::Crd(args) => crd::run(&args, std::io::stdout().lock()),
            Command::DetachFinalizers(args) => detach::run(&args, std::io::stdout().lock()),
            Command::Rbac(args) => rbac::run(*args, std::io::stdout().lock()),
            Command::Run(args) => run::run(*args),
            Command::Version => version(std::io::stdout().lock()),
        }
    }
}

fn version(mut out: impl std::io::Write) -> anyhow::Result<()> {
    Ok(writeln!(out, "lessor {}", env!("CARGO_PKG_VERSION"))?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_version_is_that_of_the_package() {
        let mut out = Vec::new();
        version(&mut out).unwrap();
        assert_eq!(out, format!("lessor {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
    }
}
