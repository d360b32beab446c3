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
mod job;
mod keep_alive;
mod list;
mod printer;
mod revoke;
mod run;
mod scope;
mod status;
mod style;
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
    use super::*;

    /// The narrowest supported terminal, in columns.
    const NARROW: usize = 80;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Each help text of the command line, with the command that has it.
    fn help_texts(command: &clap::Command) -> Vec<(String, String)> {
        let arguments = command.get_arguments().flat_map(|argument| {
            let values = argument.get_possible_values();
            let values: Vec<_> = values.iter().filter_map(|value| value.get_help().cloned()).collect();
            [argument.get_help(), argument.get_long_help()].into_iter().flatten().cloned().chain(values)
        });
        let texts = [command.get_about(), command.get_long_about(), command.get_after_help()];
        let texts = texts.into_iter().flatten().cloned().chain(arguments);
        let of_command = texts.map(|text| (command.get_name().to_owned(), text.to_string()));
        of_command.chain(command.get_subcommands().flat_map(help_texts)).collect()
    }

    #[test]
    fn clap_wraps_only_lines_that_are_paragraphs() {
        let mut root = Cli::command();
        root.build();
        for (command, text) in help_texts(&root) {
            let lines: Vec<&str> = text.split('\n').collect();
            let has_neighbour = |i: usize| {
                let neighbours = [i.checked_sub(1), i.checked_add(1)];
                neighbours.into_iter().flatten().any(|i| lines.get(i).is_some_and(|line| !line.is_empty()))
            };
            for (i, line) in lines.iter().enumerate() {
                assert!(
                    line.chars().count() <= NARROW || !has_neighbour(i),
                    "{command}: a terminal of {NARROW} columns breaks the line {line:?}, which is part of a block"
                );
            }
        }
    }

    #[test]
    fn no_line_of_the_help_is_wider_than_the_terminal() {
        fn check(mut command: clap::Command, width: usize) {
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                // clap breaks no word, and a usage line is one.
                let has_long_word = line.trim_start().starts_with("Usage:") || !line.trim().contains(' ');
                assert!(line.chars().count() <= width || has_long_word, "{width}: {line}\n{help}");
            }
            for subcommand in command.get_subcommands() {
                check(subcommand.clone(), width);
            }
        }
        for width in [NARROW, 120] {
            let mut root = Cli::command().term_width(width);
            root.build();
            check(root, width);
        }
    }
}
