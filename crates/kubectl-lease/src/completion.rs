//! `kubectl lease completion`, and what shells and kubectl ask while somebody types.

use std::{process::ExitCode, time::Duration};

use clap::{Arg, Args as ClapArgs, Command, CommandFactory, Parser, ValueEnum};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, api::ListParams, config::Kubeconfig, core::PartialObjectMeta};

use crate::{Cli, error::Outcome, output::Screen};

/// The word in front of what kubectl wants to be completed.
pub(crate) const ASK: &str = "__complete";
/// How long somebody who types is kept waiting.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many names are offered.
const MOST: u32 = 500;
/// Tells whoever asks in kubectl's way that files are no candidates.
const NO_FILES: &str = ":4";

/// Print a script that completes commands, flags and names of leases
///
/// `kubectl lease …` is completed by kubectl's own completion, which asks a program called
/// kubectl_complete-lease: see the first example. The other scripts complete the command under the name
/// kubectl-lease.
#[derive(ClapArgs, Debug)]
#[command(after_help = "\
Examples:
  # For kubectl, in any shell
  kubectl lease completion kubectl > ~/.local/bin/kubectl_complete-lease
  chmod +x ~/.local/bin/kubectl_complete-lease

  # For the name kubectl-lease
  source <(kubectl-lease completion bash)
  kubectl-lease completion zsh > \"${fpath[1]}/_kubectl-lease\"
  kubectl-lease completion fish > ~/.config/fish/completions/kubectl-lease.fish")]
pub(crate) struct Args {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Shell {
    Kubectl,
    Bash,
    Zsh,
    Fish,
}

/// Prints a script.
pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let shell = match args.shell {
        Shell::Kubectl => {
            return Ok(screen.text(
                "#!/usr/bin/env sh\n# kubectl asks this for completions of `kubectl lease`.\n\
                                   exec kubectl-lease __complete \"$@\"\n",
            )?);
        }
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    // Under the name that shells see; they can't complete two words.
    let mut command = Cli::command().bin_name("kubectl-lease");
    clap_complete::generate(shell, &mut command, "kubectl-lease", &mut script);
    Ok(screen.text(&String::from_utf8_lossy(&script))?)
}

/// Prints what could stand in the place of the last word, in the form that kubectl reads.
pub(crate) async fn complete(words: Vec<String>) -> Outcome<ExitCode> {
    let (typed, before) =
        words.split_last().map_or(("", &[][..]), |(typed, before)| (typed.as_str(), before));
    let screen = &mut Screen::new();
    for (candidate, about) in candidates(typed, before).await {
        if candidate.starts_with(typed) {
            screen.line(format!("{candidate}\t{about}"))?;
        }
    }
    screen.line(NO_FILES)?;
    Ok(ExitCode::SUCCESS)
}

async fn candidates(typed: &str, before: &[String]) -> Vec<(String, String)> {
    let mut root = Cli::command();
    root.build();
    let place = Place::find(&root, before);
    if let Some(flag) = place.awaits_value {
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
        return place.flags();
    }
    match place.command {
        None => subcommands(&root),
        // Behind the name of the lease come objects; the kinds that everybody attaches are offered.
        Some(command) if ["attach", "detach"].contains(&command.get_name()) && place.positionals > 0 => {
            named("config map", before).await
        }
        Some(command) if takes_lease(command, place.positionals) => named("lease", before).await,
        Some(_) => Vec::new(),
    }
}

/// Where in the command line the word stands that is being typed.
struct Place<'a> {
    root: &'a Command,
    command: Option<&'a Command>,
    /// How many words without a dash stand behind the command.
    positionals: usize,
    /// The flag whose value it is.
    awaits_value: Option<&'a Arg>,
}

impl<'a> Place<'a> {
    fn find(root: &'a Command, before: &[String]) -> Self {
        let mut place = Self { root, command: None, positionals: 0, awaits_value: None };
        for word in before {
            if place.awaits_value.take().is_some() {
                continue;
            }
            if word.starts_with('-') {
                place.awaits_value =
                    place.flag(word).filter(|flag| flag.get_action().takes_values() && !word.contains('='));
            } else if place.command.is_none() {
                place.command = root.find_subcommand(word);
            } else {
                place.positionals += 1;
            }
        }
        place
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

/// Whether the name of a lease that exists is expected there.
fn takes_lease(command: &Command, positionals: usize) -> bool {
    match command.get_name() {
        "renew" | "revoke" => true,
        "keep-alive" | "ttl" | "tree" | "watch" | "attach" | "detach" => positionals == 0,
        _ => false,
    }
}

/// Names that the cluster or the kubeconfig has; none if asking takes too long or fails: nobody is there to
/// be told.
async fn named(what: &str, before: &[String]) -> Vec<(String, String)> {
    tokio::time::timeout(PATIENCE, ask(what, before)).await.ok().flatten().unwrap_or_default()
}

async fn ask(what: &str, before: &[String]) -> Option<Vec<(String, String)>> {
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
    // The flags that stand before decide which cluster and namespace are meant.
    let words =
        ["kubectl-lease".to_owned()].into_iter().chain(connection_flags(before)).chain(["status".to_owned()]);
    let session = Cli::try_parse_from(words).ok()?.connection.open().await.ok()?;
    let params = ListParams::default().limit(MOST);
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

/// Those of the words that say which cluster and namespace are meant.
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
    use super::*;

    async fn offered(words: &[&str]) -> Vec<String> {
        let (typed, before) = words.split_last().unwrap();
        let before: Vec<String> = before.iter().map(|word| (*word).to_owned()).collect();
        let found = candidates(typed, &before).await;
        found.into_iter().map(|(word, _)| word).filter(|word| word.starts_with(typed)).collect()
    }

    #[tokio::test]
    async fn commands_flags_and_values_are_offered() {
        assert_eq!(offered(&["ke"]).await, ["keep-alive"]);
        assert!(offered(&[""]).await.iter().all(|word| !word.starts_with('_')));
        assert_eq!(offered(&["grant", "a", "--tt"]).await, ["--ttl"]);
        assert_eq!(offered(&["grant", "a", "--names"]).await, ["--namespace"]);
        assert_eq!(offered(&["list", "-o", ""]).await, ["table", "wide", "json", "yaml", "name"]);
        assert_eq!(offered(&["-n", "shop", "list", "--sort-by", "re"]).await, ["remaining"]);
        assert!(offered(&["grant", ""]).await.is_empty());
    }

    #[test]
    fn the_flags_of_the_connection_are_found_among_others() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            connection_flags(&words("ttl --attachments -n shop --context=prod -o json a")),
            words("-n shop --context=prod")
        );
    }
}
