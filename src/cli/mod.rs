//! What the `lessor` command can be told to do.

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

/// etcd's leases for Kubernetes: things that vanish when their holder stops renewing.
#[derive(Parser, Debug)]
#[command(name = "lessor", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the admission policy that keeps attachments from being a way around RBAC, as YAML.
    Admission(admission::Args),
    /// See that an operator works: let it grant a lease, end it, and remove what is attached.
    Check(check::Args),
    /// Print the custom resource definitions as YAML, to be applied or compared.
    Crd(crd::Args),
    /// Take our finalizer off leases, so that they can be deleted where no operator runs any more.
    DetachFinalizers(detach::Args),
    /// Print the roles that the operator needs, as YAML, for the same settings as those of run.
    Rbac(Box<rbac::Args>),
    /// Run one replica of the operator.
    Run(Box<run::Args>),
    /// Print the version.
    Version,
}

impl Cli {
    /// Does what the arguments say.
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
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_version_is_that_of_the_package() {
        let mut out = Vec::new();
        version(&mut out).unwrap();
        assert_eq!(out, format!("lessor {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
    }
}
