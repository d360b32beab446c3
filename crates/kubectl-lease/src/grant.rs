//! `kubectl lease grant`.

use std::{cmp::Ordering, time::Duration};

use clap::{Args, ValueEnum};
use lessor_api::{OnLoss, PodSource, RenewFrom, SourceName, duration::abbreviated};
use lessor_client::{Grant, HeldLease};

use crate::{
    attach,
    connect::Session,
    describe::{full_name, json_of},
    duration,
    error::{CliError, CliResult, OTHER},
    keep_alive,
    printer::{OutputArgs, OutputFormat, Printer},
    target::{KindResolver, TargetArg},
};

/// Grant a lease
///
/// The lease ends when its TTL has passed since the grant or the last renewal: by `keep-alive`, by `renew`, or by any
/// other client. Everything attached to it is removed then.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  # A lease that another client keeps alive
  kubectl lease grant session-42 --ttl 15m

  # Register a service in a shared ConfigMap while this command runs
  kubectl lease grant web-1 --ttl 30s --keep-alive --revoke \\
    --attach configmap/endpoints:web-1

  # Follow the heartbeats of a node, or a Pod, without writes
  kubectl lease grant worker-1 --ttl 40s --follow node/worker-1
  kubectl lease grant web-0 --ttl 30s --follow pod/web-0 --on-loss end

  # Renewable for three days at most, and kept after it has expired
  kubectl lease grant preview-42 --ttl 1d --max-lifetime 3d --retain")]
pub(crate) struct GrantArgs {
    /// Name of the lease
    name: String,

    #[command(flatten)]
    terms: TermArgs,

    /// Source that keeps the lease alive without writes: node/NAME, pod/NAME, lease/NAME or coordination/NAME (a Lease
    /// of coordination.k8s.io). The operator must be configured to watch it
    #[arg(long, value_name = "KIND/NAME", value_parser = source)]
    follow: Option<RenewFrom>,

    /// With --follow pod/NAME: what happens to the lease when the Pod is lost
    #[arg(long, value_enum, requires = "follow", default_value_t = OnLossArg::RunOut)]
    on_loss: OnLossArg,

    /// Attach an object, or keys of it, such as configmap/sessions:alice,bob; repeatable
    #[arg(long = "attach", value_name = "KIND/NAME[:KEY,…]")]
    attachments: Vec<TargetArg>,

    /// Keep the lease alive until Ctrl-C
    #[arg(long)]
    keep_alive: bool,

    /// With --keep-alive: revoke the lease on Ctrl-C, instead of letting it expire
    #[arg(long, requires = "keep_alive")]
    revoke: bool,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum OnLossArg {
    /// The TTL runs from then on
    RunOut,
    /// The lease ends at once
    End,
}

/// Parses a source, such as `node/worker-1`.
fn source(text: &str) -> Result<RenewFrom, String> {
    let wrong = || "expected node/NAME, pod/NAME, lease/NAME or coordination/NAME".to_owned();
    let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
    let named = Some(SourceName { name: name.to_owned() });
    let from = RenewFrom::default();
    Ok(match kind {
        "node" => RenewFrom { node: named, ..from },
        "pod" => RenewFrom { pod: Some(PodSource { name: name.to_owned(), ..PodSource::default() }), ..from },
        "lease" => RenewFrom { lease: named, ..from },
        "coordination" => RenewFrom { coordination_lease: named, ..from },
        _ => return Err(wrong()),
    })
}

/// The terms of a lease.
#[derive(Args, Debug)]
pub(crate) struct TermArgs {
    /// How long the lease lives after its last renewal, such as 90s, 15m, 1h30m or 2d
    #[arg(long, value_name = "DURATION", value_parser = duration::whole_seconds)]
    ttl: Duration,

    /// Who renews the lease, for information [default: user and host]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,

    /// The lease ends at most this long after its grant, even if it is renewed
    #[arg(long, value_name = "DURATION", value_parser = duration::whole_seconds)]
    max_lifetime: Option<Duration>,

    /// Emit an Event when at most this much remains
    #[arg(long, value_name = "DURATION", value_parser = duration::whole_seconds)]
    warn_before: Option<Duration>,

    /// Keep the Lease object after it has expired, for inspection
    #[arg(long)]
    retain: bool,

    /// Label of the lease; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

impl TermArgs {
    /// The lease to grant.
    pub(crate) fn grant(&self, name: &str) -> Grant {
        let mut grant = Grant::new(name, self.ttl).holder(self.holder.clone().unwrap_or_else(user_at_host));
        if let Some(lifetime) = self.max_lifetime {
            grant = grant.max_lifetime(lifetime);
        }
        if let Some(remaining) = self.warn_before {
            grant = grant.warn_before(remaining);
        }
        if self.retain {
            grant = grant.retain();
        }
        self.labels.iter().fold(grant, |grant, (name, value)| grant.label(name, value))
    }

    /// `granted for 30s`, with the reason if that differs from the requested TTL.
    pub(crate) fn describe_grant(&self, lease: &HeldLease) -> String {
        let granted = abbreviated(lease.ttl());
        let limit = match lease.ttl().cmp(&self.ttl) {
            Ordering::Equal => return format!("granted for {granted}"),
            Ordering::Greater => "minimum",
            Ordering::Less => "maximum",
        };
        format!("granted for {granted}, the operator's {limit} ({} was requested)", abbreviated(self.ttl))
    }
}

/// The default holder.
fn user_at_host() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let host = hostname::get().ok().and_then(|host| host.into_string().ok()).unwrap_or_default();
    match (user.is_empty(), host.is_empty()) {
        (false, false) => format!("{user}@{host}"),
        (true, true) => "kubectl-lease".to_owned(),
        _ => user + &host,
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE, such as team=web".to_owned()),
    }
}

pub(crate) async fn run(args: GrantArgs, session: &Session, printer: &mut Printer) -> CliResult {
    let format = args.output.output;
    if args.keep_alive && !format.is_text() {
        return Err(CliError::new(
            OTHER,
            "--keep-alive prints a line for each renewal, and can't be used with -o",
        ));
    }
    // Check the objects before granting anything.
    let mut kinds = KindResolver::new(&session.client);
    let mut targets = Vec::new();
    for arg in &args.attachments {
        let target = arg.resolve(&mut kinds).await?;
        attach::check(session, &target, arg).await?;
        targets.push((target, arg));
    }
    let mut grant = args.terms.grant(&args.name);
    if let Some(mut source) = args.follow {
        match (&mut source.pod, args.on_loss) {
            (Some(pod), OnLossArg::End) => pod.on_loss = OnLoss::End,
            (None, OnLossArg::End) => {
                return Err(CliError::new(OTHER, "--on-loss requires --follow pod/NAME"));
            }
            (_, OnLossArg::RunOut) => {}
        }
        grant = grant.follow(source);
    }
    let lease = session.leases.grant(&grant).await?;
    if format.is_text() {
        printer.line(format!("{} {}", full_name(lease.name()), args.terms.describe_grant(&lease)))?;
    }
    for (target, arg) in targets {
        let attached = session.leases.attach(lease.name(), &target, arg.keys()).await;
        let attached = attached.map_err(|error| {
            let left = abbreviated(lease.deadline().remaining());
            CliError::from(error).about(format!(
                "{} was granted, with {left} left, but {target} couldn't be attached to it",
                full_name(lease.name())
            ))
        })?;
        if format.is_text() {
            printer.line(attach::describe_outcome(&target, arg, &attached))?;
        }
    }
    match format {
        OutputFormat::Table | OutputFormat::Wide => {}
        OutputFormat::Name => printer.line(full_name(lease.name()))?,
        format => printer.value(&json_of(lease.lease())?, format)?,
    }
    if args.keep_alive { keep_alive::keep(lease, args.revoke, printer).await } else { Ok(()) }
}
