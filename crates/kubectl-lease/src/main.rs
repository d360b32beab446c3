#![doc = include_str!("../README.md")]

use std::process::ExitCode;

mod attach;
mod attachments;
mod completion;
mod connect;
mod describe;
mod duration;
mod error;
mod grant;
mod keep_alive;
mod list;
mod printer;
mod revoke;
mod run;
mod scope;
mod status;
mod table;
mod target;
mod tree;
mod ttl;
mod watch;

use clap::{CommandFactory, Parser, Subcommand};

use self::{
    connect::ConnectionArgs,
    error::{CliError, CliResult, EXIT_CODES, OTHER},
    printer::Printer,
};

/// Grant leases, keep them alive, and attach objects that are deleted when a lease ends
///
/// A lease is granted for a TTL, and each renewal starts the TTL again. When the holder stops renewing it, it ends, and the
/// objects and keys attached to it are removed.
///
/// The command talks only to the API server. The roles lessor-view and lessor-edit grant the necessary rights.
#[derive(Parser, Debug)]
#[command(
    name = "kubectl-lease",
    bin_name = "kubectl lease",
    version,
    after_help = EXIT_CODES,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    connection: ConnectionArgs,

    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Subcommand, Debug)]
enum LeaseCommand {
    Grant(grant::GrantArgs),
    Renew(keep_alive::RenewArgs),
    KeepAlive(keep_alive::KeepAliveArgs),
    Ttl(ttl::TtlArgs),
    List(list::ListArgs),
    Tree(tree::TreeArgs),
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
    Revoke(revoke::RevokeArgs),
    Run(run::RunArgs),
    Watch(watch::WatchArgs),
    Status(status::StatusArgs),
    Completion(completion::CompletionArgs),
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let result = match words.next().as_deref() {
        // An incomplete command line follows, which clap can't parse.
        Some(completion::COMPLETE) => start(completion::complete(Cli::command(), words.collect())),
        _ => start(perform(Cli::parse())),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            error.report();
            error.exit_code()
        }
    }
}

fn start(work: impl Future<Output = CliResult<ExitCode>>) -> CliResult<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CliError::new(OTHER, format!("can't start: {error}")))?;
    let result = runtime.block_on(work);
    // Don't wait for abandoned requests.
    runtime.shutdown_background();
    result
}

async fn perform(cli: Cli) -> CliResult<ExitCode> {
    let connection = &cli.connection;
    let printer = &mut Printer::new();
    match cli.command {
        LeaseCommand::Grant(args) => grant::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::Renew(args) => keep_alive::renew(args, &connection.open().await?, printer).await?,
        LeaseCommand::KeepAlive(args) => keep_alive::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::Ttl(args) => ttl::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::List(args) => list::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::Tree(args) => tree::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::Attach(args) => attach::attach(args, &connection.open().await?, printer).await?,
        LeaseCommand::Detach(args) => attach::detach(args, &connection.open().await?, printer).await?,
        LeaseCommand::Revoke(args) => revoke::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::Run(args) => return run::run(args, connection).await,
        LeaseCommand::Watch(args) => watch::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::Status(args) => status::run(args, &connection.open().await?, printer).await?,
        LeaseCommand::Completion(args) => completion::run(args, Cli::command(), printer)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
