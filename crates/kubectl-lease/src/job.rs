//! The command of `kubectl lease run` as a job: in a process group of its own, with the terminal where it needs it.

use std::{
    fs::File,
    io::{self, IsTerminal},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    time::Duration,
};

use lessor_client::{BootInstant, HeldLease};
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::{
    process::{
        Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_current_process_group, kill_process,
        kill_process_group, waitid,
    },
    termios::{tcgetpgrp, tcsetpgrp},
};
use tokio::process::{Child, Command};

use crate::error::{CliError, CliResult, RUN_NO_COMMAND, RUN_NOT_EXECUTABLE, note};

/// How long a stop of this process may take to become effective.
const STOPPING: Duration = Duration::from_millis(100);

/// A running command.
pub(crate) struct Job {
    child: Child,
    /// The process group that the command leads, with the command's pid.
    group: Pid,
    /// The terminal that controls this process, if there is one.
    terminal: Option<Terminal>,
    /// Whether the command has the terminal while this job is in the foreground.
    uses_terminal: bool,
}

impl Job {
    /// Starts the command for a lease.
    pub(crate) fn start(command: &[String], lease: &HeldLease) -> CliResult<Self> {
        let [program, arguments @ ..] = command else {
            return Err(CliError::new(RUN_NO_COMMAND, "missing command"));
        };
        let child = Command::new(program)
            .args(arguments)
            .env("LEASE_NAME", lease.name())
            .env("LEASE_NAMESPACE", lease.client().namespace())
            .env("LEASE_FENCING_TOKEN", lease.fencing_token().to_string())
            .kill_on_drop(true)
            .process_group(0)
            .spawn()
            .map_err(|error| {
                let code =
                    if error.kind() == io::ErrorKind::NotFound { RUN_NO_COMMAND } else { RUN_NOT_EXECUTABLE };
                CliError::new(code, format!("can't execute {program:?}: {error}"))
            })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let group =
            pid.ok_or_else(|| CliError::new(RUN_NOT_EXECUTABLE, format!("{program:?} exited at once")))?;
        let uses_terminal = io::stdin().is_terminal();
        let job = Self { child, group, terminal: Terminal::of_this_process(), uses_terminal };
        if uses_terminal {
            job.give_terminal();
        }
        Ok(job)
    }

    /// Waits for the exit of the command.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        let interrupt = status.signal().and_then(Signal::from_named_raw);
        if self.take_terminal()
            && let Some(signal @ (Signal::INT | Signal::QUIT)) = interrupt
        {
            // Typed at the terminal, it is for the whole job: for a script that runs this program, too.
            let _ = kill_current_process_group(signal);
        }
        Ok(status)
    }

    /// Forwards a signal to the command.
    pub(crate) fn forward(&self, signal: Signal) {
        // An error means that the command has exited.
        let _ = kill_process_group(self.group, signal);
    }

    /// Terminates the command, and kills its group when it has exited or at `latest`.
    pub(crate) async fn stop(&mut self, latest: BootInstant) {
        self.forward(Signal::TERM);
        // A process that is suspended doesn't handle signals.
        self.forward(Signal::CONT);
        let exited = tokio::select! {
            _ = self.child.wait() => true,
            () = latest.reached() => false,
        };
        // Also kill descendants of the command, which must not work without the lease.
        self.forward(Signal::KILL);
        if !exited {
            note("the command didn't exit: killing it");
            let _ = self.child.start_kill();
            let _ = self.child.wait().await;
        }
        self.take_terminal();
    }

    /// If the command was suspended, then either because it needs the terminal, or by a user, who means the whole job.
    pub(crate) fn child_changed(&mut self) {
        let stopped = waitid(WaitId::Pid(self.group), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        let signal = stopped.ok().flatten().and_then(|status| status.stopping_signal());
        let (Some(terminal), Some(signal)) = (&self.terminal, signal.and_then(Signal::from_named_raw)) else {
            return;
        };
        let needs_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if needs_terminal && terminal.is_foreground(getpgrp()) {
            self.uses_terminal = true;
            self.resume();
        } else if needs_terminal || self.take_terminal() {
            let _ = kill_current_process_group(Signal::TSTP);
        }
    }

    /// Suspends the command and this program, until a shell continues this program.
    pub(crate) async fn suspend(&self) {
        self.forward(Signal::TSTP);
        // Without a shell that could continue it, this has no effect, unlike SIGSTOP. (SIGTSTP is handled.)
        let _ = kill_process(getpid(), Signal::TTIN);
        tokio::time::sleep(STOPPING).await;
        self.resume();
    }

    fn resume(&self) {
        if self.uses_terminal {
            self.give_terminal();
        }
        self.forward(Signal::CONT);
    }

    /// Puts the command into the foreground if this program is there.
    fn give_terminal(&self) {
        if let Some(terminal) = &self.terminal
            && terminal.is_foreground(getpgrp())
        {
            terminal.set_foreground(self.group);
            // It may have needed the terminal a moment too early.
            self.forward(Signal::CONT);
        }
    }

    /// Puts this program back into the foreground if the command is there. Returns whether it was.
    fn take_terminal(&self) -> bool {
        let terminal = self.terminal.as_ref().filter(|terminal| terminal.is_foreground(self.group));
        terminal.inspect(|terminal| terminal.set_foreground(getpgrp())).is_some()
    }
}

/// The terminal that controls this process.
struct Terminal(File);

impl Terminal {
    fn of_this_process() -> Option<Self> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    fn is_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    /// Puts a process group into the foreground.
    fn set_foreground(&self, group: Pid) {
        // Who does so from the background is suspended by this signal, unless it is blocked.
        let blocked = SigSet::from(nix::sys::signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK);
        // An error means that the terminal is gone.
        let _ = tcsetpgrp(&self.0, group);
        let _ = blocked.map(|before| before.thread_set_mask());
    }
}
