//! `lessor run`: one replica of the operator.

use std::{
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use lessor::runtime;
use lessor_api::duration;
use lessor_core::{index::sources::SourceKind, settings::Settings};

use super::{access::AccessArgs, attachable::AttachableArgs, name, telemetry, telemetry::TelemetryArgs};

/// The longest duration of an argument: the longest TTL of the API. Sums with it don't overflow.
const MAX_DURATION: Duration = Duration::from_secs(lessor_api::lease::MAX_SECONDS.unsigned_abs());
/// The greatest `--expiry-rate`.
const MAX_EXPIRY_RATE: u32 = 1_000_000;

/// Durations are written as 500ms, 10s, 5m or 2h.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Name of the Lessor object, by which replicas elect the primary. Each installation needs its own, and its own namespaces.
    #[arg(long, env = "LESSOR_NAME", default_value = "default", value_parser = name::object)]
    lessor: String,

    /// Name of this replica. A random suffix is added on each start. Default: the host name.
    #[arg(long, env = "LESSOR_IDENTITY")]
    identity: Option<String>,

    /// Namespace to serve. Repeatable. Default: all namespaces.
    #[arg(long = "namespace", short, env = "LESSOR_NAMESPACES", value_delimiter = ',', value_parser = name::namespace)]
    namespaces: Vec<String>,

    #[command(flatten)]
    attachable: AttachableArgs,

    /// What leases can follow, besides other leases: coordination-leases, nodes or pods. Repeatable.
    #[arg(long, env = "LESSOR_FOLLOW", value_delimiter = ',', value_name = "KIND")]
    follow: Vec<SourceKind>,

    /// Minimal granted TTL.
    #[arg(long, env = "LESSOR_MIN_TTL", default_value = "5s", value_parser = duration::parse)]
    min_ttl: Duration,

    /// Maximal granted TTL. The default is the limit of the API.
    #[arg(long, env = "LESSOR_MAX_TTL", default_value = "9000000000s", value_parser = duration::parse)]
    max_ttl: Duration,

    /// Maximal difference between the clocks of two API servers.
    #[arg(long, env = "LESSOR_MAX_CLOCK_SKEW", default_value = "2s", value_parser = duration::parse)]
    max_clock_skew: Duration,

    /// Grace period after a start, counted from the first API server response, in which no lease expires.
    #[arg(long, env = "LESSOR_START_GRACE", default_value = "10s", value_parser = duration::parse)]
    start_grace: Duration,

    /// Upper limit of the grace period of leases with a long TTL: it is a third of the TTL, if that is more than --start-grace.
    #[arg(long, env = "LESSOR_MAX_START_GRACE", default_value = "10m", value_parser = duration::parse)]
    max_start_grace: Duration,

    /// Minimal time between the end of a lease and its release, for attachments made just before the end.
    #[arg(long, env = "LESSOR_LINGER", default_value = "2s", value_parser = duration::parse)]
    linger: Duration,

    /// Time without a write by the primary, while work is due, after which a follower takes over.
    #[arg(long, env = "LESSOR_LEASE_DURATION", default_value = "5s", value_parser = duration::parse)]
    lease_duration: Duration,

    /// Maximal rate of writes that only refresh the status of leases, per second.
    #[arg(long, env = "LESSOR_STATUS_RATE", default_value = "20", value_parser = rate)]
    status_rate: f64,

    /// Maximal rate at which leases are ended, per second.
    #[arg(long, env = "LESSOR_EXPIRY_RATE", default_value = "500")]
    expiry_rate: NonZeroU32,

    /// Maximal rate of Kubernetes Events, per second.
    #[arg(long, env = "LESSOR_EVENT_RATE", default_value = "10", value_parser = rate)]
    event_rate: f64,

    /// Maximal number of concurrent requests, apart from those for leases that hang.
    #[arg(long, env = "LESSOR_CONCURRENCY", default_value = "32")]
    concurrency: NonZeroU16,

    /// Time after which a Warning Event reports an attachment to a lease that doesn't exist.
    #[arg(long, env = "LESSOR_PENDING_WARNING", default_value = "30s", value_parser = duration::parse)]
    pending_warning: Duration,

    /// Only report removals, in the log and as Events, and remove nothing.
    #[arg(long, env = "LESSOR_DRY_RUN")]
    dry_run: bool,

    /// Address of /healthz, /readyz, /metrics and /debug/attachments, such as 0.0.0.0:8080. Default: not served.
    #[arg(long, env = "LESSOR_ADMIN_ADDRESS")]
    admin_address: Option<std::net::SocketAddr>,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Runs a replica until SIGTERM or Ctrl-C.
pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    check(&args)?;
    let runtime = tokio::runtime::Runtime::new().context("can't start the runtime")?;
    let traces = {
        let _inside = runtime.enter();
        telemetry::start(&args.telemetry)?
    };
    let ended = runtime.block_on(async {
        let access = args.access.clone();
        let settings = settings(args)?;
        let config = access.config().await?;
        tracing::info!(
            identity = settings.identity,
            lessor = settings.lessor,
            dry_run = settings.dry_run,
            "starting"
        );
        runtime::run(config, settings, terminated()?).await?;
        tracing::info!("stopped");
        Ok(())
    });
    traces.end();
    ended
}

/// Checks the values of arguments, alone and together.
fn check(args: &RunArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.min_ttl <= args.max_ttl,
        "--min-ttl ({:?}) is greater than --max-ttl ({:?})",
        args.min_ttl,
        args.max_ttl
    );
    anyhow::ensure!(
        args.lease_duration >= Duration::from_millis(500),
        "--lease-duration ({:?}) is too short for a request: expected at least 500ms",
        args.lease_duration
    );
    anyhow::ensure!(
        args.expiry_rate.get() <= MAX_EXPIRY_RATE,
        "--expiry-rate ({}) is greater than {MAX_EXPIRY_RATE}",
        args.expiry_rate
    );
    for (argument, duration) in [
        ("--min-ttl", args.min_ttl),
        ("--max-ttl", args.max_ttl),
        ("--max-clock-skew", args.max_clock_skew),
        ("--start-grace", args.start_grace),
        ("--max-start-grace", args.max_start_grace),
        ("--linger", args.linger),
        ("--lease-duration", args.lease_duration),
        ("--pending-warning", args.pending_warning),
    ] {
        anyhow::ensure!(
            duration <= MAX_DURATION,
            "{argument} ({duration:?}) is longer than {MAX_DURATION:?}"
        );
    }
    Ok(())
}

fn settings(args: RunArgs) -> anyhow::Result<Settings> {
    let host = || {
        hostname::get().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "lessor".to_owned())
    };
    let name = args.identity.unwrap_or_else(host);
    Ok(Settings {
        lessor: args.lessor,
        // Unique to this process: a restarted one must not take its predecessor's claims for its own.
        identity: format!("{name}_{:08x}", uuid::Uuid::new_v4().as_fields().0),
        namespaces: args.namespaces,
        attachable: args.attachable.read()?,
        follow: args.follow,
        min_ttl: args.min_ttl,
        max_ttl: args.max_ttl,
        max_clock_skew: args.max_clock_skew,
        start_grace: args.start_grace,
        max_start_grace: args.max_start_grace,
        linger: args.linger,
        lease_duration: args.lease_duration,
        status_rate: args.status_rate,
        expiry_rate: args.expiry_rate,
        concurrency: usize::from(args.concurrency.get()),
        event_rate: args.event_rate,
        pending_warning: args.pending_warning,
        dry_run: args.dry_run,
        admin_address: args.admin_address,
    })
}

/// Completes on SIGTERM or Ctrl-C.
fn terminated() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("can't listen for Ctrl-C")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!("invalid rate {text:?}: expected a number above zero, such as 20 or 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: RunArgs,
    }

    #[test]
    fn values_that_would_overflow_are_refused() {
        let check = |arguments: &[&str]| {
            check(&Command::try_parse_from([&["run"], arguments].concat()).unwrap().args)
        };
        check(&["--expiry-rate", "1000000", "--linger", "9000000000s"]).unwrap();
        assert!(check(&["--expiry-rate", "4294967295"]).is_err());
        for argument in [
            "--max-clock-skew",
            "--start-grace",
            "--max-start-grace",
            "--linger",
            "--lease-duration",
            "--pending-warning",
            "--max-ttl",
        ] {
            let error = check(&[argument, "18446744073709551s"]).unwrap_err().to_string();
            assert!(error.starts_with(argument), "{error}");
        }
    }

    #[test]
    fn a_rate_is_above_zero() {
        assert_eq!(rate("0.5"), Ok(0.5));
        for wrong in ["", "0", "-1", "inf", "NaN", "many"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
