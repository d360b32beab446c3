//! `kubectl lease grant`.

use std::time::Duration;

use lessor_api::{OnLoss, PodSource, RenewFrom, SourceName};
use lessor_client::{Grant, HeldLease};

use crate::{
    attach,
    connect::Session,
    duration::{self, short},
    error::{Failure, OTHER, Outcome},
    keep_alive,
    output::{Format, Output, Screen, full_name, json_of},
    target::{Kinds, Written},
};

/// Grant a lease
///
/// It lives for its TTL, unless it's renewed: by `keep-alive`, by `renew`, or by whoever else holds it. What
/// is attached to it goes when it ends.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  # A lease that somebody else will keep alive
  kubectl lease grant session-42 --ttl 15m

  # Register a service in a shared ConfigMap, for as long as this command runs
  kubectl lease grant web-1 --ttl 30s --attach configmap/endpoints:web-1 --keep-alive --revoke

  # What lives as long as its node does, or its Pod, without a write
  kubectl lease grant worker-1 --ttl 40s --follow node/worker-1 --attach configmap/caches:worker-1
  kubectl lease grant web-0 --ttl 30s --follow pod/web-0 --on-loss end

  # A preview that goes after three days at the latest, and stays visible after that
  kubectl lease grant preview-42 --ttl 1d --max-lifetime 3d --warn-before 1h --retain")]
pub(crate) struct Args {
    /// The name of the lease
    name: String,

    #[command(flatten)]
    terms: Terms,

    /// What keeps it alive without a write: node/NAME, pod/NAME, lease/NAME or coordination/NAME (a Lease of
    /// coordination.k8s.io). The operator has to be told to look at it
    #[arg(long, value_name = "KIND/NAME", value_parser = source)]
    follow: Option<RenewFrom>,

    /// With --follow pod/NAME: what becomes of the lease when the Pod is lost
    #[arg(long, value_enum, requires = "follow", default_value_t = Loss::RunOut)]
    on_loss: Loss,

    /// Attach an object, or keys of it, like configmap/sessions:alice,bob; may be given several times
    #[arg(long = "attach", value_name = "KIND/NAME[:KEY,…]")]
    attachments: Vec<Written>,

    /// Keep it alive until Ctrl-C
    #[arg(long)]
    keep_alive: bool,

    /// With --keep-alive: on Ctrl-C, revoke it instead of leaving it to expire
    #[arg(long, requires = "keep_alive")]
    revoke: bool,

    #[command(flatten)]
    output: Output,
}

/// What becomes of a lease whose Pod is lost.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Its TTL runs from then on
    RunOut,
    /// It ends at once
    End,
}

/// `node/worker-1`, and the like.
fn source(text: &str) -> Result<RenewFrom, String> {
    let wrong =
        || "write node/NAME, pod/NAME, lease/NAME or coordination/NAME, like node/worker-1".to_owned();
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

/// What a lease shall be like.
#[derive(clap::Args, Debug)]
pub(crate) struct Terms {
    /// How long it lives without a renewal, like 90s, 15m, 1h30m or 2d
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    ttl: Duration,

    /// Who keeps it alive, for people. Default: you, on this machine
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,

    /// When it ends at the latest, however often it's renewed
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_lifetime: Option<Duration>,

    /// When this little remains, an Event says so
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    warn_before: Option<Duration>,

    /// Keep the lease itself after it has expired, for people to look at
    #[arg(long)]
    retain: bool,

    /// A label of the lease; may be given several times
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

impl Terms {
    /// What is asked of the server.
    pub(crate) fn grant(&self, name: &str) -> Grant {
        let mut grant = Grant::new(name, self.ttl).holder(self.holder.clone().unwrap_or_else(whoever));
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

    /// `granted for 30s`, and why that isn't what was asked for.
    pub(crate) fn granted(&self, held: &HeldLease) -> String {
        let (asked, granted) = (self.ttl, held.ttl());
        let limit = match granted.cmp(&asked) {
            std::cmp::Ordering::Equal => return format!("granted for {}", short(granted)),
            std::cmp::Ordering::Greater => "shortest",
            std::cmp::Ordering::Less => "longest",
        };
        format!(
            "granted for {}, the {limit} that the operator grants ({} was asked for)",
            short(granted),
            short(asked)
        )
    }
}

/// Who runs this, and where.
fn whoever() -> String {
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
        _ => Err("write a name, an equals sign and a value, like team=web".to_owned()),
    }
}

/// Grants a lease, attaches, and keeps it alive, as far as that's asked for.
pub(crate) async fn run(args: Args, session: &Session, screen: &mut Screen) -> Outcome {
    if args.keep_alive && !matches!(args.output.output, Format::Table | Format::Wide) {
        return Err(Failure::new(OTHER, "--keep-alive writes a line for each renewal: leave -o away"));
    }
    // Before anything is granted: does what shall be attached exist?
    let mut kinds = Kinds::new(&session.client);
    let mut targets = Vec::new();
    for written in &args.attachments {
        let target = written.resolve(&mut kinds).await?;
        attach::check(session, &target, written).await?;
        targets.push((target, written));
    }
    let mut grant = args.terms.grant(&args.name);
    if let Some(mut source) = args.follow {
        match (&mut source.pod, args.on_loss) {
            (Some(pod), Loss::End) => pod.on_loss = OnLoss::End,
            (None, Loss::End) => {
                return Err(Failure::new(OTHER, "--on-loss is for Pods: write --follow pod/NAME"));
            }
            (_, Loss::RunOut) => {}
        }
        grant = grant.follow(source);
    }
    let held = session.leases.grant(&grant).await?;
    let quiet = !matches!(args.output.output, Format::Table | Format::Wide);
    if !quiet {
        screen.line(format!("{} {}", full_name(held.name()), args.terms.granted(&held)))?;
    }
    for (target, written) in targets {
        let attached = session.leases.attach(held.name(), &target, written.keys()).await;
        let attached = attached.map_err(|error| {
            let left = short(held.deadline().remaining());
            Failure::from(error).about(format!(
                "{} is granted and lives for {left}, but {target} couldn't be attached to it",
                full_name(held.name())
            ))
        })?;
        if !quiet {
            screen.line(attach::sentence(&target, written, &attached))?;
        }
    }
    match args.output.output {
        Format::Table | Format::Wide => {}
        Format::Name => screen.line(full_name(held.name()))?,
        format => screen.value(&json_of(held.lease())?, format)?,
    }
    if args.keep_alive { keep_alive::keep(held, args.revoke, screen).await } else { Ok(()) }
}
