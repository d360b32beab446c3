//! `kubectl lease run`.

use std::{
    io::{self, IsTerminal},
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use lessor_client::{Beat, Error, HeldLease, KeepAlive, LeaseClient, Lost, Moment, Pace};
use rustix::process::{
    Pid, Signal, getpgrp, getpid, kill_current_process_group, kill_process, kill_process_group,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use crate::{
    connect::Connection,
    duration::{self, short},
    error::{Failure, OTHER, Outcome, RUN_LOST, RUN_NO_COMMAND, RUN_NOT_GRANTED, RUN_NOT_RUNNABLE, note},
    grant::Terms,
    keep_alive::complain,
    output::full_name,
};

/// The longest time for a command to end by itself, unless another is given.
const LONGEST_GRACE: Duration = Duration::from_secs(10);

/// Run a command under a lease of its own
///
/// Grants the lease, keeps it alive while the command runs, and revokes it when the command ends. If the
/// lease is lost, the command is stopped: first by SIGTERM, and at the lease's deadline at the latest by
/// SIGKILL.
///
/// The command finds LEASE_NAME, LEASE_NAMESPACE and LEASE_FENCING_TOKEN in its environment. A lease isn't a
/// mutex by itself: a system that it guards has to refuse a smaller token than it has seen.
///
/// Only if this program itself is killed (SIGKILL) does the command go on without its lease: that's one more reason for
/// the token.
///
/// Without a terminal the command gets a process group of its own, and all of that is stopped. On a terminal
/// it shares the group of this command, and the whole group is stopped, as by Ctrl-C.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  # One backup at a time, on whatever machine
  kubectl lease run backup --ttl 1m -- ./backup.sh

  # The same, but wait for the one that runs
  kubectl lease run backup --ttl 1m --wait 1h -- ./backup.sh

The exit code is the command's own, or one of those from 124 to 127: see kubectl lease --help.")]
pub(crate) struct Args {
    /// The name of the lease
    name: String,

    #[command(flatten)]
    terms: Terms,

    /// Wait this long if there is a lease of this name. Default: fail at once
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,

    /// How long the command has between SIGTERM and SIGKILL. Default: a sixth of the TTL, and 10s at most
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    grace: Option<Duration>,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs a command under a lease.
pub(crate) async fn run(args: Args, connection: &Connection) -> Outcome<ExitCode> {
    // The command's own exit codes begin when there is a command.
    let not_granted = |failure: Failure| failure.with_code(RUN_NOT_GRANTED);
    let session = connection.open().await.map_err(not_granted)?;
    let held = grant(&args, &session.leases).await.map_err(not_granted)?;
    note(format!("{} {}", full_name(held.name()), args.terms.granted(&held)));
    let grace = args.grace.unwrap_or_else(|| LONGEST_GRACE.min(held.ttl() / 6));
    if grace >= held.ttl() * 2 / 3 {
        let ttl = short(held.ttl());
        end(&held).await;
        return Err(Failure::new(
            RUN_NOT_GRANTED,
            format!("--grace leaves no time to renew: give a small part of the TTL ({ttl})"),
        ));
    }
    // Before there is a command that a signal to us would leave alone.
    let mut signals = Signals::listen().map_err(not_granted)?;
    let mut job = match Job::start(&args.command, &held) {
        Ok(job) => job,
        Err(failure) => {
            end(&held).await;
            return Err(failure);
        }
    };
    let mut alive = KeepAlive::start(held, Pace::default().with_margin(grace));
    match attend(&mut job, &mut alive, &mut signals).await? {
        Ok(status) => {
            end(&alive.stop()).await;
            Ok(code_of(status))
        }
        Err(lost) => {
            let held = alive.stop();
            note(format!("{}: {lost}; stopping the command", full_name(held.name())));
            job.stop(Moment::now().after(grace).min(latest_end(&lost, &held, grace))).await;
            Ok(ExitCode::from(RUN_LOST))
        }
    }
}

/// Grants the lease, if need be after the one that is there.
async fn grant(args: &Args, leases: &LeaseClient) -> Outcome<HeldLease> {
    let grant = args.terms.grant(&args.name);
    let until = Moment::now().after(args.wait.unwrap_or_default());
    let mut told = false;
    loop {
        match leases.grant(&grant).await {
            Err(Error::Exists(_)) if !until.is_past() => {
                if !told {
                    note(format!("{} exists: waiting for its end", full_name(&args.name)));
                    told = true;
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

/// Waits for the command's end, or the lease's, whichever comes first; passes signals on meanwhile.
async fn attend(
    job: &mut Job,
    alive: &mut KeepAlive,
    signals: &mut Signals,
) -> Outcome<Result<ExitStatus, Lost>> {
    loop {
        tokio::select! {
            status = job.child.wait() => return Ok(Ok(status?)),
            beat = alive.next() => match beat {
                Some(Beat::Lost(lost)) => return Ok(Err(lost)),
                Some(beat) => complain(&beat, &alive.held()),
                None => return Ok(Err(alive.lost().await)),
            },
            signal = signals.next() => job.pass_on(signal),
        }
    }
}

/// Signals that are meant for the command.
struct Signals {
    interrupts: tokio::signal::unix::Signal,
    terminates: tokio::signal::unix::Signal,
    hangups: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> Outcome<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::new(OTHER, format!("can't listen for signals: {error}")))
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

/// Revokes the lease. That this fails doesn't change what the command has done.
async fn end(held: &HeldLease) {
    if let Err(error) = held.revoke().await {
        let left = short(held.deadline().remaining());
        note(format!("{} couldn't be revoked, and lives for {left}: {error}", full_name(held.name())));
    }
}

/// When the command has to be gone: at the deadline of a lease that couldn't be renewed, and soon after the
/// end of one that has ended already.
fn latest_end(lost: &Lost, held: &HeldLease, grace: Duration) -> Moment {
    match lost {
        Lost::NotRenewed(_) | Lost::Outlived => held.deadline(),
        _ => Moment::now().after(grace),
    }
}

/// A command that runs, and whom to signal to stop it with all that it has started.
struct Job {
    child: Child,
    group: Group,
}

#[derive(Clone, Copy, Debug)]
enum Group {
    /// The command leads one of its own.
    Own(Pid),
    /// It shares ours, which a shell has made for this job; the terminal's signals reach it, too.
    Job(Pid),
    /// It shares that of whoever started us, who is not to be stopped.
    Foreign(Pid),
}

impl Job {
    fn start(command: &[String], held: &HeldLease) -> Outcome<Self> {
        let [program, arguments @ ..] = command else {
            return Err(Failure::new(RUN_NO_COMMAND, "no command"));
        };
        let on_terminal =
            io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LEASE_NAME", held.name())
            .env("LEASE_NAMESPACE", held.client().namespace())
            .env("LEASE_FENCING_TOKEN", held.fencing_token().to_string())
            .kill_on_drop(true);
        // In a group of its own, a command couldn't read from the terminal.
        if !on_terminal {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| {
            let code =
                if error.kind() == io::ErrorKind::NotFound { RUN_NO_COMMAND } else { RUN_NOT_RUNNABLE };
            Failure::new(code, format!("can't run {program:?}: {error}"))
        })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| Failure::new(RUN_NOT_RUNNABLE, format!("{program:?} ended at once")))?;
        let group = match on_terminal {
            false => Group::Own(pid),
            true if getpgrp() == getpid() => Group::Job(pid),
            true => Group::Foreign(pid),
        };
        Ok(Self { child, group })
    }

    /// Passes a signal on that reached us.
    fn pass_on(&self, sent: Signal) {
        // It may have ended meanwhile, which is all that a signal could ask for.
        let _ = match self.group {
            Group::Own(pid) => kill_process_group(pid, sent),
            // The terminal has sent it to the whole group.
            Group::Job(_) | Group::Foreign(_) if sent == Signal::INT => Ok(()),
            Group::Job(pid) | Group::Foreign(pid) => kill_process(pid, sent),
        };
    }

    /// Asks the command to end, and ends it at `latest`.
    async fn stop(&mut self, latest: Moment) {
        let _ = match self.group {
            Group::Own(pid) => kill_process_group(pid, Signal::TERM),
            // We listen for this signal, so it doesn't end us.
            Group::Job(_) => kill_current_process_group(Signal::TERM),
            Group::Foreign(pid) => kill_process(pid, Signal::TERM),
        };
        let ended = tokio::select! {
            _ = self.child.wait() => true,
            () = latest.come() => false,
        };
        if let Group::Own(pid) = self.group {
            // Also what the command has left behind: nobody works on under a lease that is lost.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        if ended {
            return;
        }
        note("the command didn't end: killing it");
        let _ = self.child.start_kill();
        if let Group::Job(_) = self.group {
            // This ends us, too; nothing is left to be done.
            let _ = kill_current_process_group(Signal::KILL);
        }
        let _ = self.child.wait().await;
    }
}

/// The command's exit code, as a shell has it.
fn code_of(status: ExitStatus) -> ExitCode {
    let code =
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(i32::from(OTHER));
    ExitCode::from(u8::try_from(code).unwrap_or(OTHER))
}
