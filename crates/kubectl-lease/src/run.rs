//! `kubectl lease run`: a command under a lease.

use std::{
    io::{self, IsTerminal},
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use clap::Args;
use lessor_api::duration::abbreviated;
use lessor_client::{
    BootInstant, Error, HeldLease, KeepAlive, KeepAliveEvent, KeepAliveOptions, LeaseClient, LossReason,
};
use rustix::process::{
    Pid, Signal, getpgrp, getpid, kill_current_process_group, kill_process, kill_process_group,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use crate::{
    connect::ConnectionArgs,
    describe::full_name,
    duration,
    error::{
        CliError, CliResult, OTHER, RUN_LOST, RUN_NO_COMMAND, RUN_NOT_EXECUTABLE, RUN_NOT_GRANTED, note,
    },
    grant::TermArgs,
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
/// program is killed by SIGKILL, because the command then continues without its lease.
///
/// Without a terminal, the command gets a process group of its own, which is stopped as a whole. On a terminal, it is in
/// the process group of this program, which is stopped as a whole, as by Ctrl-C.
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
            status = job.child.wait() => return Ok(Ok(status?)),
            event = alive.next() => match event {
                Some(KeepAliveEvent::Lost(reason)) => return Ok(Err(reason)),
                Some(event) => report_failure(&event, &alive.lease()),
                None => return Ok(Err(alive.lost().await)),
            },
            signal = signals.next() => job.forward(signal),
        }
    }
}

/// Signals that are forwarded to the command.
struct Signals {
    interrupts: tokio::signal::unix::Signal,
    terminates: tokio::signal::unix::Signal,
    hangups: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> CliResult<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| CliError::new(OTHER, format!("can't listen for signals: {error}")))
        };
        Ok(Self {
            interrupts: listen(SignalKind::interrupt())?,
            terminates: listen(SignalKind::terminate())?,
            hangups: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupts.recv() => Signal::INT,
            _ = self.terminates.recv() => Signal::TERM,
            _ = self.hangups.recv() => Signal::HUP,
        }
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

/// A running command.
struct Job {
    child: Child,
    group: ProcessGroup,
}

/// The process group of the command, with the command's pid.
#[derive(Clone, Copy, Debug)]
enum ProcessGroup {
    /// A group of its own, which the command leads.
    Own(Pid),
    /// This program's group, which a shell has created for this job. The terminal signals the whole group.
    Shared(Pid),
    /// The group of this program's parent, which must not be stopped.
    Parent(Pid),
}

impl Job {
    fn start(command: &[String], lease: &HeldLease) -> CliResult<Self> {
        let [program, arguments @ ..] = command else {
            return Err(CliError::new(RUN_NO_COMMAND, "missing command"));
        };
        let on_terminal =
            io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LEASE_NAME", lease.name())
            .env("LEASE_NAMESPACE", lease.client().namespace())
            .env("LEASE_FENCING_TOKEN", lease.fencing_token().to_string())
            .kill_on_drop(true);
        // In a group of its own, the command couldn't read from the terminal.
        if !on_terminal {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| {
            let code =
                if error.kind() == io::ErrorKind::NotFound { RUN_NO_COMMAND } else { RUN_NOT_EXECUTABLE };
            CliError::new(code, format!("can't execute {program:?}: {error}"))
        })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid =
            pid.ok_or_else(|| CliError::new(RUN_NOT_EXECUTABLE, format!("{program:?} exited at once")))?;
        let group = match on_terminal {
            false => ProcessGroup::Own(pid),
            true if getpgrp() == getpid() => ProcessGroup::Shared(pid),
            true => ProcessGroup::Parent(pid),
        };
        Ok(Self { child, group })
    }

    /// Forwards a signal to the command.
    fn forward(&self, signal: Signal) {
        // An error means that the command has exited.
        let _ = match self.group {
            ProcessGroup::Own(pid) => kill_process_group(pid, signal),
            // The terminal has sent it to the whole group.
            ProcessGroup::Shared(_) | ProcessGroup::Parent(_) if signal == Signal::INT => Ok(()),
            ProcessGroup::Shared(pid) | ProcessGroup::Parent(pid) => kill_process(pid, signal),
        };
    }

    /// Terminates the command, and kills it at `latest`.
    async fn stop(&mut self, latest: BootInstant) {
        let _ = match self.group {
            ProcessGroup::Own(pid) => kill_process_group(pid, Signal::TERM),
            // This program handles the signal, so it doesn't exit.
            ProcessGroup::Shared(_) => kill_current_process_group(Signal::TERM),
            ProcessGroup::Parent(pid) => kill_process(pid, Signal::TERM),
        };
        let exited = tokio::select! {
            _ = self.child.wait() => true,
            () = latest.reached() => false,
        };
        if let ProcessGroup::Own(pid) = self.group {
            // Also kill descendants of the command, which must not work without the lease.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        if exited {
            return;
        }
        note("the command didn't exit: killing it");
        let _ = self.child.start_kill();
        if let ProcessGroup::Shared(_) = self.group {
            // This kills this program too, which has nothing left to do.
            let _ = kill_current_process_group(Signal::KILL);
        }
        let _ = self.child.wait().await;
    }
}

/// The command's exit code, like that of a shell.
fn exit_code_of(status: ExitStatus) -> ExitCode {
    let code =
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(i32::from(OTHER));
    ExitCode::from(u8::try_from(code).unwrap_or(OTHER))
}
