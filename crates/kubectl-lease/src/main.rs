//! `kubectl lease`: leases from a shell.

use std::process::ExitCode;

mod attach;
mod attachments;
mod completion;
mod connect;
mod duration;
mod error;
mod grant;
mod keep_alive;
mod list;
mod output;
mod revoke;
mod run;
mod status;
mod target;
mod ttl;
mod watch;

use clap::{Parser, Subcommand};

use self::{
    connect::Connection,
    error::{EXIT_CODES, Failure, OTHER, Outcome},
    output::Screen,
};

/// Leases from a shell: grant one, keep it alive, attach things that vanish with it.
///
/// A lease is a promise of time. It lives for its TTL, counted anew from each renewal, and when nobody renews
/// it any more, it ends: whatever is attached to it is deleted, ConfigMaps as well as single keys of them.
///
///   kubectl lease grant web-1 --ttl 30s --attach configmap/endpoints:web-1
///   kubectl lease keep-alive web-1
///   kubectl lease run nightly --ttl 1m -- ./backup.sh
///
/// Needs nothing but the API server, and rights on leases: the roles lessor-view and lessor-edit have them.
#[derive(Parser, Debug)]
#[command(
    name = "kubectl-lease",
    bin_name = "kubectl lease",
    version,
    after_help = EXIT_CODES,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    verbatim_doc_comment
)]
pub(crate) struct Cli {
    #[command(flatten)]
    connection: Connection,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Grant(grant::Args),
    Renew(keep_alive::RenewArgs),
    KeepAlive(keep_alive::Args),
    Ttl(ttl::TtlArgs),
    List(list::Args),
    Tree(ttl::TreeArgs),
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
    Revoke(revoke::Args),
    Run(run::Args),
    Watch(watch::Args),
    Status(status::Args),
    Completion(completion::Args),
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let outcome = match words.next().as_deref() {
        // What follows is somebody else's command line, half typed.
        Some(completion::ASK) => start(completion::complete(words.collect())),
        _ => start(perform(Cli::parse())),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            failure.report();
            failure.exit_code()
        }
    }
}

fn start(work: impl Future<Output = Outcome<ExitCode>>) -> Outcome<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(OTHER, format!("can't start: {error}")))?;
    let outcome = runtime.block_on(work);
    // Whatever still runs is a request that nobody waits for any more.
    runtime.shutdown_background();
    outcome
}

async fn perform(cli: Cli) -> Outcome<ExitCode> {
    let connection = &cli.connection;
    let screen = &mut Screen::new();
    match cli.command {
        Command::Grant(args) => grant::run(args, &connection.open().await?, screen).await?,
        Command::Renew(args) => keep_alive::renew(args, &connection.open().await?, screen).await?,
        Command::KeepAlive(args) => keep_alive::run(args, &connection.open().await?, screen).await?,
        Command::Ttl(args) => ttl::ttl(args, &connection.open().await?, screen).await?,
        Command::List(args) => list::run(args, &connection.open().await?, screen).await?,
        Command::Tree(args) => ttl::tree(args, &connection.open().await?, screen).await?,
        Command::Attach(args) => attach::attach(args, &connection.open().await?, screen).await?,
        Command::Detach(args) => attach::detach(args, &connection.open().await?, screen).await?,
        Command::Revoke(args) => revoke::run(args, &connection.open().await?, screen).await?,
        Command::Run(args) => return run::run(args, connection).await,
        Command::Watch(args) => watch::run(args, &connection.open().await?, screen).await?,
        Command::Status(args) => status::run(args, &connection.open().await?, screen).await?,
        Command::Completion(args) => completion::run(args, screen)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }
}
