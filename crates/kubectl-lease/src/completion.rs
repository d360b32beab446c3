//! `kubectl lease completion`, and the completions that kubectl requests.

use std::{process::ExitCode, time::Duration};

use clap::{Arg, Args, Command, FromArgMatches, ValueEnum};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, api::ListParams, config::Kubeconfig, core::PartialObjectMeta};

use crate::{connect::ConnectionArgs, error::CliResult, printer::Printer};

/// The subcommand by which kubectl requests completions.
pub(crate) const COMPLETE: &str = "__complete";
/// The maximum time to wait for names.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of names.
const MAX_NAMES: u32 = 500;
/// The directive in kubectl's protocol that excludes file names.
const NO_FILES: &str = ":4";

/// Print a completion script
///
/// kubectl's own completion calls a program kubectl_complete-lease to complete `kubectl lease`: see the first example. The
/// other scripts complete the command kubectl-lease.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  # For `kubectl lease`, in any shell
  kubectl lease completion kubectl > ~/.local/bin/kubectl_complete-lease
  chmod +x ~/.local/bin/kubectl_complete-lease

  # For `kubectl-lease`
  source <(kubectl-lease completion bash)
  kubectl-lease completion zsh > \"${fpath[1]}/_kubectl-lease\"
  kubectl-lease completion fish > ~/.config/fish/completions/kubectl-lease.fish")]
pub(crate) struct CompletionArgs {
    /// Shell
    #[arg(value_enum)]
    shell: CompletionShell,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum CompletionShell {
    Kubectl,
    Bash,
    Zsh,
    Fish,
}

/// Prints a script that completes `command`.
pub(crate) fn run(args: CompletionArgs, command: Command, printer: &mut Printer) -> CliResult {
    let shell = match args.shell {
        CompletionShell::Kubectl => {
            return Ok(printer.text(
                "#!/usr/bin/env sh\n# kubectl calls this to complete `kubectl lease`.\n\
                 exec kubectl-lease __complete \"$@\"\n",
            )?);
        }
        CompletionShell::Bash => clap_complete::Shell::Bash,
        CompletionShell::Zsh => clap_complete::Shell::Zsh,
        CompletionShell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    // Shells complete commands of one word.
    let mut command = command.bin_name("kubectl-lease");
    clap_complete::generate(shell, &mut command, "kubectl-lease", &mut script);
    Ok(printer.text(&String::from_utf8_lossy(&script))?)
}

/// Prints candidates for the last word in kubectl's format.
pub(crate) async fn complete(root: Command, words: Vec<String>) -> CliResult<ExitCode> {
    let (typed, before) =
        words.split_last().map_or(("", &[][..]), |(typed, before)| (typed.as_str(), before));
    let printer = &mut Printer::new();
    for (candidate, about) in candidates(root, typed, before).await {
        if candidate.starts_with(typed) {
            printer.line(format!("{candidate}\t{about}"))?;
        }
    }
    printer.line(NO_FILES)?;
    Ok(ExitCode::SUCCESS)
}

async fn candidates(mut root: Command, typed: &str, before: &[String]) -> Vec<(String, String)> {
    root.build();
    let cursor = Cursor::find(&root, before);
    if let Some(flag) = cursor.awaits_value {
        let values = flag.get_possible_values();
        if !values.is_empty() {
            let about =
                |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
            return values
                .iter()
                .map(|value| (value.get_name().to_owned(), about(value.get_help())))
                .collect();
        }
        return named(flag.get_id().as_str(), before).await;
    }
    if typed.starts_with('-') {
        return cursor.flags();
    }
    match cursor.command {
        None => subcommands(&root),
        // Objects follow the name of the lease. Only ConfigMaps are offered.
        Some(command) if ["attach", "detach"].contains(&command.get_name()) && cursor.positionals > 0 => {
            named("config map", before).await
        }
        Some(command) if takes_lease(command, cursor.positionals) => named("lease", before).await,
        Some(_) => Vec::new(),
    }
}

/// The position of the last word in the command line.
struct Cursor<'a> {
    root: &'a Command,
    command: Option<&'a Command>,
    /// The number of positional arguments before it.
    positionals: usize,
    /// The flag whose value it is, if any.
    awaits_value: Option<&'a Arg>,
}

impl<'a> Cursor<'a> {
    fn find(root: &'a Command, before: &[String]) -> Self {
        let mut cursor = Self { root, command: None, positionals: 0, awaits_value: None };
        for word in before {
            if cursor.awaits_value.take().is_some() {
                continue;
            }
            if word.starts_with('-') {
                cursor.awaits_value =
                    cursor.flag(word).filter(|flag| flag.get_action().takes_values() && !word.contains('='));
            } else if cursor.command.is_none() {
                cursor.command = root.find_subcommand(word);
            } else {
                cursor.positionals += 1;
            }
        }
        cursor
    }

    fn arguments(&self) -> impl Iterator<Item = &'a Arg> {
        self.command
            .unwrap_or(self.root)
            .get_arguments()
            .filter(|arg| !arg.is_positional() && !arg.is_hide_set())
    }

    fn flag(&self, word: &str) -> Option<&'a Arg> {
        let name = word.split('=').next().unwrap_or(word);
        self.arguments().find(|arg| {
            let long = arg.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long));
            long || arg.get_short().is_some_and(|short| name == format!("-{short}"))
        })
    }

    fn flags(&self) -> Vec<(String, String)> {
        let about = |arg: &Arg| arg.get_help().map(ToString::to_string).unwrap_or_default();
        self.arguments().filter_map(|arg| Some((format!("--{}", arg.get_long()?), about(arg)))).collect()
    }
}

fn subcommands(root: &Command) -> Vec<(String, String)> {
    let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
    root.get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| (command.get_name().to_owned(), about(command)))
        .collect()
}

/// Whether the name of an existing lease is expected.
fn takes_lease(command: &Command, positionals: usize) -> bool {
    match command.get_name() {
        "renew" | "revoke" => true,
        "keep-alive" | "ttl" | "tree" | "watch" | "attach" | "detach" => positionals == 0,
        _ => false,
    }
}

/// Names in the cluster or the kubeconfig; none after an error or a timeout, which completion can't report.
async fn named(what: &str, before: &[String]) -> Vec<(String, String)> {
    tokio::time::timeout(TIMEOUT, names(what, before)).await.ok().flatten().unwrap_or_default()
}

async fn names(what: &str, before: &[String]) -> Option<Vec<(String, String)>> {
    let plain = |names: Vec<String>| names.into_iter().map(|name| (name, String::new())).collect();
    let kubeconfig = || Kubeconfig::from_env().ok().flatten().or_else(|| Kubeconfig::read().ok());
    match what {
        "context" => {
            return Some(plain(kubeconfig()?.contexts.into_iter().map(|context| context.name).collect()));
        }
        "cluster" => {
            return Some(plain(kubeconfig()?.clusters.into_iter().map(|cluster| cluster.name).collect()));
        }
        "user" => return Some(plain(kubeconfig()?.auth_infos.into_iter().map(|user| user.name).collect())),
        _ => {}
    }
    let words = ["kubectl-lease".to_owned()].into_iter().chain(connection_flags(before));
    let flags =
        ConnectionArgs::augment_args(Command::new("kubectl-lease")).try_get_matches_from(words).ok()?;
    let session = ConnectionArgs::from_arg_matches(&flags).ok()?.open().await.ok()?;
    let params = ListParams::default().limit(MAX_NAMES);
    match what {
        "namespace" => {
            let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(session.client.clone());
            let listed = namespaces.list(&params).await.ok()?;
            Some(plain(listed.items.into_iter().filter_map(|item| item.metadata.name).collect()))
        }
        "lease" => {
            let listed = session.leases.api().list(&params).await.ok()?;
            let about = |lease: &lessor_api::Lease| lease.spec.holder.clone().unwrap_or_default();
            Some(
                listed
                    .items
                    .into_iter()
                    .map(|lease| (lease.metadata.name.clone().unwrap_or_default(), about(&lease)))
                    .collect(),
            )
        }
        "config map" => {
            let maps: Api<PartialObjectMeta<ConfigMap>> =
                Api::namespaced(session.client.clone(), session.leases.namespace());
            let listed = maps.list(&params).await.ok()?;
            let name =
                |item: PartialObjectMeta<ConfigMap>| Some(format!("configmap/{}", item.metadata.name?));
            Some(plain(listed.items.into_iter().filter_map(name).collect()))
        }
        _ => None,
    }
}

/// The flags that choose the cluster and the namespace.
fn connection_flags(before: &[String]) -> Vec<String> {
    let flags = ["-n", "--namespace", "--kubeconfig", "--context", "--cluster", "--user", "--as"];
    let mut found = Vec::new();
    let mut words = before.iter();
    while let Some(word) = words.next() {
        if flags.contains(&word.as_str()) {
            found.push(word.clone());
            found.extend(words.next().cloned());
        } else if flags.iter().any(|flag| word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))) {
            found.push(word.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    async fn offered(words: &[&str]) -> Vec<String> {
        let (typed, before) = words.split_last().unwrap();
        let before: Vec<String> = before.iter().map(|word| (*word).to_owned()).collect();
        let found = candidates(Cli::command(), typed, &before).await;
        found.into_iter().map(|(word, _)| word).filter(|word| word.starts_with(typed)).collect()
    }

    #[tokio::test]
    async fn commands_flags_and_values_are_completed() {
        assert_eq!(offered(&["ke"]).await, ["keep-alive"]);
        assert!(offered(&[""]).await.iter().all(|word| !word.starts_with('_')));
        assert_eq!(offered(&["grant", "a", "--tt"]).await, ["--ttl"]);
        assert_eq!(offered(&["grant", "a", "--names"]).await, ["--namespace"]);
        assert_eq!(offered(&["list", "-o", ""]).await, ["table", "wide", "json", "yaml", "name"]);
        assert_eq!(offered(&["-n", "shop", "list", "--sort-by", "re"]).await, ["remaining"]);
        assert!(offered(&["grant", ""]).await.is_empty());
    }

    #[test]
    fn connection_flags_are_extracted_from_the_command_line() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            connection_flags(&words("ttl --attachments -n shop --context=prod -o json a")),
            words("-n shop --context=prod")
        );
    }
}
