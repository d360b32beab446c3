//! `kubectl lease run`: a command under a lease.

use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use clap::Args;
use futures::future::select_all;
use lessor_api::duration::abbreviated;
use lessor_client::{
    BootInstant, Error, HeldLease, KeepAlive, KeepAliveEvent, KeepAliveOptions, LeaseClient, LossReason,
};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    connect::ConnectionArgs,
    describe::full_name,
    duration,
    error::{CliError, CliResult, OTHER, RUN_LOST, RUN_NOT_GRANTED, note},
    grant::TermArgs,
    job::Job,
    keep_alive::report_failure,
};

/// The maximum of the default of `--grace`.
const MAX_DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Run a command under a lease of its own
///
/// Grants the lease, keeps it alive while the command runs, and revokes it when the command exits. If the lease is lost,
/// the command is stopped by SIGTERM, and at the deadline of the lease by SIGKILL.
///
/// The command's environment has LEASE_NAME, LEASE_NAMESPACE and LEASE_FENCING_TOKEN. A lease alone is not a mutex: a
/// system that it protects must reject a token smaller than one it has accepted. This matters in particular if this
/// program is killed by SIGKILL: the command and all that it started then continue, and the lease expires.
///
/// The command gets a process group of its own, with or without a terminal, and the whole group is stopped. Processes that
/// leave the group (as by setsid) are not stopped.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  # One backup at a time across all machines
  kubectl lease run backup --ttl 1m -- ./backup.sh

  # The same, but wait for a running backup
  kubectl lease run backup --ttl 1m --wait 1h -- ./backup.sh

The exit code is that of the command, or from 124 to 127: see `kubectl lease --help`.")]
pub(crate) struct RunArgs {
    /// Name of the lease
    name: String,

    #[command(flatten)]
    terms: TermArgs,

    /// Maximum time to wait for the end of an existing lease of this name [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration::positive)]
    wait: Option<Duration>,

    /// Time between SIGTERM and SIGKILL [default: a sixth of the TTL, and at most 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration::positive)]
    grace: Option<Duration>,

    /// Command with its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(args: RunArgs, connection: &ConnectionArgs) -> CliResult<ExitCode> {
    // Errors before the start of the command have an exit code that the command is unlikely to use.
    let not_granted = |error: CliError| error.with_code(RUN_NOT_GRANTED);
    let session = connection.open().await.map_err(not_granted)?;
    let lease = grant(&args, &session.leases).await.map_err(not_granted)?;
    note(format!("{} {}", full_name(lease.name()), args.terms.describe_grant(&lease)));
    let grace = args.grace.unwrap_or_else(|| MAX_DEFAULT_GRACE.min(lease.ttl() / 6));
    if grace >= lease.ttl() * 2 / 3 {
        revoke(&lease).await;
        let ttl = abbreviated(lease.ttl());
        return Err(CliError::new(
            RUN_NOT_GRANTED,
            format!(
                "--grace leaves no time for renewals: it must be less than two thirds of the TTL ({ttl})"
            ),
        ));
    }
    // Catch signals before the command starts, because a signal that ends this program would leave the command running.
    let mut signals = Signals::listen().map_err(not_granted)?;
    let mut job = match Job::start(&args.command, &lease) {
        Ok(job) => job,
        Err(error) => {
            revoke(&lease).await;
            return Err(error);
        }
    };
    let mut alive = KeepAlive::start(lease, KeepAliveOptions::default().with_margin(grace));
    match wait(&mut job, &mut alive, &mut signals).await? {
        Ok(status) => {
            revoke(&alive.stop()).await;
            Ok(exit_code_of(status))
        }
        Err(reason) => {
            let lease = alive.stop();
            note(format!("{}: {reason}; stopping the command", full_name(lease.name())));
            job.stop(BootInstant::now().after(grace).min(latest_end(&reason, &lease, grace))).await;
            Ok(ExitCode::from(RUN_LOST))
        }
    }
}

/// Grants the lease, with `--wait` after the end of an existing lease.
async fn grant(args: &RunArgs, leases: &LeaseClient) -> CliResult<HeldLease> {
    let grant = args.terms.grant(&args.name);
    let until = BootInstant::now().after(args.wait.unwrap_or_default());
    let mut reported = false;
    loop {
        match leases.grant(&grant).await {
            Err(Error::Exists(_)) if !until.is_past() => {
                if !reported {
                    note(format!("{} exists: waiting for its end", full_name(&args.name)));
                    reported = true;
                }
                match tokio::time::timeout(until.remaining(), leases.wait_gone(&args.name)).await {
                    Ok(gone) => gone?,
                    Err(_) => {
                        return Err(Error::Exists(format!("{} still exists", full_name(&args.name))).into());
                    }
                }
            }
            granted => return Ok(granted?),
        }
    }
}

/// Waits for the exit of the command or the loss of the lease, and forwards signals to the command.
async fn wait(
    job: &mut Job,
    alive: &mut KeepAlive,
    signals: &mut Signals,
) -> CliResult<Result<ExitStatus, LossReason>> {
    loop {
        tokio::select! {
            status = job.wait() => return Ok(Ok(status?)),
            event = alive.next() => match event {
                Some(KeepAliveEvent::Lost(reason)) => return Ok(Err(reason)),
                Some(event) => report_failure(&event, &alive.lease()),
                None => return Ok(Err(alive.lost().await)),
            },
            signal = signals.next() => match signal {
                Signal::CHILD => job.child_changed(),
                Signal::TSTP => job.suspend().await,
                signal => job.forward(signal),
            },
        }
    }
}

/// The signals that concern the command.
struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    fn listen() -> CliResult<Self> {
        let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::CHILD];
        let listen = |number: Signal| match signal(SignalKind::from_raw(number.as_raw())) {
            Ok(stream) => Ok((number, stream)),
            Err(error) => Err(CliError::new(OTHER, format!("can't listen for signals: {error}"))),
        };
        Ok(Self(signals.into_iter().map(listen).collect::<CliResult<_>>()?))
    }

    async fn next(&mut self) -> Signal {
        let streams = self.0.iter_mut().map(|(number, stream)| {
            Box::pin(async move {
                stream.recv().await;
                *number
            })
        });
        select_all(streams).await.0
    }
}

/// Revokes the lease. An error doesn't change the exit code, which is that of the command.
async fn revoke(lease: &HeldLease) {
    if let Err(error) = lease.revoke().await {
        let left = abbreviated(lease.deadline().remaining());
        note(format!("{} couldn't be revoked, and expires in {left}: {error}", full_name(lease.name())));
    }
}

/// When the command is killed: at the deadline of a lease that couldn't be renewed, or soon after the end of the lease.
fn latest_end(reason: &LossReason, lease: &HeldLease, grace: Duration) -> BootInstant {
    match reason {
        LossReason::NotRenewed(_) | LossReason::MaxLifetime => lease.deadline(),
        _ => BootInstant::now().after(grace),
    }
}

/// The command's exit code, like that of a shell.
fn exit_code_of(status: ExitStatus) -> ExitCode {
    let code =
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(i32::from(OTHER));
    ExitCode::from(u8::try_from(code).unwrap_or(OTHER))
}
