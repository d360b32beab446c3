//! `lessor run`: one replica of the operator.

use std::{
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use anyhow::Context;
use clap::Args as ClapArgs;
use lessor::runtime;
use lessor_core::{index::sources::SourceKind, settings::Settings};

use super::{access::Access, attachable, name, telemetry};

/// How a replica runs. Durations are written like 500ms, 10s, 5m or 2h.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The Lessor object that replicas compete for; another name for another installation with other namespaces.
    #[arg(long, env = "LESSOR_NAME", default_value = "default", value_parser = name::object)]
    lessor: String,

    /// The beginning of this replica's name; a random end makes it unique to this run. Default: the host's name.
    #[arg(long, env = "LESSOR_IDENTITY")]
    identity: Option<String>,

    /// A namespace to serve; may be given several times. Default: all.
    #[arg(long = "namespace", short, env = "LESSOR_NAMESPACES", value_delimiter = ',', value_parser = name::namespace)]
    namespaces: Vec<String>,

    #[command(flatten)]
    attachable: attachable::Args,

    /// What leases can follow beside other leases: coordination-leases, nodes or pods; may be given several times.
    #[arg(long, env = "LESSOR_FOLLOW", value_delimiter = ',', value_name = "KIND")]
    follow: Vec<SourceKind>,

    /// The shortest TTL that is granted, whatever is asked for.
    #[arg(long, env = "LESSOR_MIN_TTL", default_value = "5s", value_parser = duration)]
    min_ttl: Duration,

    /// The longest TTL that is granted, whatever is asked for. Default: no limit but the API's 9000000000 s.
    #[arg(long, env = "LESSOR_MAX_TTL", default_value = "9000000000s", value_parser = duration)]
    max_ttl: Duration,

    /// How far the clocks of two API servers may be apart.
    #[arg(long, env = "LESSOR_MAX_CLOCK_SKEW", default_value = "2s", value_parser = duration)]
    max_clock_skew: Duration,

    /// Nothing ends after a start for this long from when the API server is first heard: holders may have been unable to renew.
    #[arg(long, env = "LESSOR_START_GRACE", default_value = "10s", value_parser = duration)]
    start_grace: Duration,

    /// How long an ended lease stays at least, for attachments that were made just before its end.
    #[arg(long, env = "LESSOR_LINGER", default_value = "2s", value_parser = duration)]
    linger: Duration,

    /// A primary that gives no sign of life for this long, with work to do, is replaced.
    #[arg(long, env = "LESSOR_LEASE_DURATION", default_value = "5s", value_parser = duration)]
    lease_duration: Duration,

    /// Writes per second that only bring the status of leases up to date.
    #[arg(long, env = "LESSOR_STATUS_RATE", default_value = "20", value_parser = rate)]
    status_rate: f64,

    /// Leases ended per second, at most.
    #[arg(long, env = "LESSOR_EXPIRY_RATE", default_value = "500")]
    expiry_rate: NonZeroU32,

    /// Events written per second, at most.
    #[arg(long, env = "LESSOR_EVENT_RATE", default_value = "10", value_parser = rate)]
    event_rate: f64,

    /// Requests under way at once.
    #[arg(long, env = "LESSOR_CONCURRENCY", default_value = "32")]
    concurrency: NonZeroU16,

    /// How long an attachment may name a lease that isn't there before an Event warns of it.
    #[arg(long, env = "LESSOR_PENDING_WARNING", default_value = "30s", value_parser = duration)]
    pending_warning: Duration,

    /// Show what would be removed, in the log and as Events, and remove nothing.
    #[arg(long, env = "LESSOR_DRY_RUN")]
    dry_run: bool,

    /// Where to serve /healthz, /readyz, /metrics and /debug/attachments, like 0.0.0.0:8080. Default: nowhere.
    #[arg(long, env = "LESSOR_ADMIN_ADDRESS")]
    admin_address: Option<std::net::SocketAddr>,

    #[command(flatten)]
    access: Access,

    #[command(flatten)]
    telemetry: telemetry::Args,
}

/// Runs a replica until SIGTERM or Ctrl-C.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    check(&args)?;
    let runtime = tokio::runtime::Runtime::new().context("can't start")?;
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

/// What is wrong with no argument by itself, or only with its value.
fn check(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.min_ttl <= args.max_ttl,
        "--min-ttl ({:?}) is more than --max-ttl ({:?})",
        args.min_ttl,
        args.max_ttl
    );
    anyhow::ensure!(
        args.lease_duration >= Duration::from_millis(500),
        "--lease-duration ({:?}) leaves no time for a request: give at least 500ms",
        args.lease_duration
    );
    Ok(())
}

fn settings(args: Args) -> anyhow::Result<Settings> {
    let host = || {
        hostname::get().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "lessor".to_owned())
    };
    let name = args.identity.unwrap_or_else(host);
    Ok(Settings {
        lessor: args.lessor,
        // A restarted process is another replica: it must not take its predecessor's claims for its own.
        identity: format!("{name}_{:08x}", uuid::Uuid::new_v4().as_fields().0),
        namespaces: args.namespaces,
        attachable: args.attachable.read()?,
        follow: args.follow,
        min_ttl: args.min_ttl,
        max_ttl: args.max_ttl,
        max_clock_skew: args.max_clock_skew,
        start_grace: args.start_grace,
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

/// Ends with SIGTERM or Ctrl-C.
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

/// A whole number and a unit; nothing is understood by half.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is no duration: write a whole number and a unit, like 500ms, 10s, 5m or 2h");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => return Ok(Duration::from_millis(number)),
        "s" => Some(number),
        "m" => number.checked_mul(60),
        "h" => number.checked_mul(3600),
        _ => None,
    };
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!("{text:?} is no rate: write a number above zero, like 20 or 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_understood_wholly_or_not_at_all() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("9000000000s"), Ok(Duration::from_secs(9_000_000_000)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in [
            "",
            "5",
            "s",
            "-1s",
            "1.5h",
            "1h30",
            "1h30m",
            "5 s",
            "5S",
            "99999999999999999999s",
            "9000000000000000000h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
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
