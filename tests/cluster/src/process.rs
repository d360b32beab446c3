//! Child processes: signals, exit status and log, for servers and for programs under test.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
};
use tokio::{sync::watch, time::timeout};

use crate::{
    error::{Doing, Error},
    keeper::Keeper,
};

/// A child process, started with [`Cluster::spawn`](crate::Cluster::spawn).
///
/// It has a process group of its own, and signals go to that group. It is killed when this handle is dropped, when
/// the cluster is, and when the test process ends in whatever way.
///
/// The handle belongs to no async runtime: tests with runtimes of their own can share it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: PathBuf,
    /// False once the child has been reaped, and its process id may belong to another.
    signalable: Arc<Mutex<bool>>,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts `command` under `keeper`; its output is appended to the file `log`.
    pub(crate) fn spawn(
        keeper: &Arc<Keeper>,
        command: &Command,
        name: &str,
        log: &Path,
    ) -> Result<Self, Error> {
        let doing = || format!("starting {name}");
        let output = File::options().create(true).append(true).open(log).doing(doing)?;
        let errors = output.try_clone().doing(doing)?;
        let mut child = keeper.spawn(command, output.into(), errors.into()).doing(doing)?;
        let id = child.id();
        let pid = Pid::from_child(&child);
        let signalable = Arc::new(Mutex::new(true));
        let (sender, exit) = watch::channel(None);
        let reaped = Arc::clone(&signalable);
        // Weak: the thread of a process that hangs must not keep the keeper, and so the whole cluster, alive.
        let keeper = Arc::downgrade(keeper);
        std::thread::Builder::new()
            .name(format!("wait for {name}"))
            .spawn(move || {
                // It leaves a zombie that holds the process id, so that the id is released under the lock.
                await_state(pid, WaitIdOptions::EXITED);
                let mut signalable = reaped.lock();
                if let Some(keeper) = keeper.upgrade() {
                    keeper.ended(id);
                }
                let status = child.wait();
                *signalable = false;
                drop(signalable);
                // `wait` on our own unreaped child can't fail; if it does, the channel closes and says so.
                if let Ok(status) = status {
                    sender.send_replace(Some(status));
                }
            })
            .doing(doing)?;
        Ok(Self { name: name.to_owned(), pid, log: log.to_owned(), signalable, exit })
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The file that takes what it prints.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// What it has printed until now, both streams in one.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Result<ExitStatus, Error> {
        let mut exit = self.exit.clone();
        let status = exit
            .wait_for(Option::is_some)
            .await
            .map_err(io::Error::other)
            .doing(|| format!("waiting for {}", self.name))?;
        // `wait_for` has just seen `Some`.
        status.ok_or_else(|| Error::io(format!("waiting for {}", self.name), io::ErrorKind::Other.into()))
    }

    /// Kills it (SIGKILL) and waits for its end. It may have ended before.
    pub async fn kill(&self) -> Result<ExitStatus, Error> {
        self.signal(Signal::KILL)?;
        self.wait().await
    }

    /// Asks it to end (SIGTERM) and waits for that, at most a minute. A paused one goes on, to end.
    ///
    /// # Errors
    /// [`Error::StillRunning`] with the last lines of its log, if it hasn't ended by then.
    pub async fn stop(&self) -> Result<ExitStatus, Error> {
        const PATIENCE: Duration = Duration::from_secs(60);
        self.terminate()?;
        self.resume()?;
        match timeout(PATIENCE, self.wait()).await {
            Ok(status) => status,
            Err(_) => Err(Error::StillRunning {
                name: self.name.clone(),
                waited: PATIENCE,
                log: crate::error::LogTail::of(&self.log),
            }),
        }
    }

    /// Asks it to end (SIGTERM), without waiting.
    pub fn terminate(&self) -> Result<(), Error> {
        self.signal(Signal::TERM)
    }

    /// Freezes it (SIGSTOP): its connections stay open, and nothing is read, written or answered. Frozen on return.
    pub fn pause(&self) -> Result<(), Error> {
        self.signal_and(Signal::STOP, || {
            // The signal alone returns while threads on other processors still run.
            await_state(self.pid, WaitIdOptions::STOPPED | WaitIdOptions::EXITED);
        })
    }

    /// Lets it go on after [`Process::pause`] (SIGCONT).
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.signal_and(signal, || ())
    }

    /// Signals the process group, and does something while its id can't be reused. No error and nothing done if it
    /// has ended: who kills wants it gone.
    fn signal_and(&self, signal: Signal, then: impl FnOnce()) -> Result<(), Error> {
        let signalable = self.signalable.lock();
        if *signalable {
            kill_process_group(self.pid, signal)
                .map_err(io::Error::from)
                .doing(|| format!("sending {signal:?} to {}", self.name))?;
            then();
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The only failure is that it's gone already.
        let _ = self.signal(Signal::KILL);
    }
}

/// Blocks until the child is in one of these states. Another error than an interruption means that it's gone.
fn await_state(pid: Pid, states: WaitIdOptions) {
    while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), states | WaitIdOptions::NOWAIT) {}
}
