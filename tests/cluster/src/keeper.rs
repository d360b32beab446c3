//! The keeper: a small process that outlives the test process and cleans up after it.
//!
//! Destructors don't run for statics, after `abort`, Ctrl-C or SIGKILL, so no cleanup here depends on them. The
//! keeper reads a pipe whose write end only the test process holds. Whatever ends that process closes the pipe; the
//! keeper then kills every process that it was told of, and removes the cluster's directory.

use std::{
    io::{self, BufRead, BufReader, PipeWriter, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use parking_lot::Mutex;

/// What the keeper runs: `sh` is on every Unix machine, and needs no second binary to be built and found.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
directory=$1 children= stay=
while read -r word child; do
    case $word in
    started) children="$children $child" ;;
    ended)
        others=
        for other in $children; do [ "$other" = "$child" ] || others="$others $other"; done
        children=$others
        ;;
    stay)
        stay=yes
        trap 'stay=' TERM
        echo stays
        ;;
    esac
done
while [ "$stay" ]; do
    sleep 1
    # No process reports any longer which have ended, and their ids will be given to others.
    others=
    for child in $children; do kill -0 -"$child" 2>/dev/null && others="$others $child"; done
    children=$others
done
for child in $children; do kill -KILL -"$child" 2>/dev/null; done
# Dead within milliseconds. Zombies that are not reaped yet hold nothing, and are not waited for.
tries=0
for child in $children; do
    while [ $tries -lt 10 ] && kill -0 -"$child" 2>/dev/null; do
        tries=$((tries + 1))
        sleep 0.1
    done
done
[ -n "$LESSOR_CLUSTER_KEEP" ] || rm -rf "$directory"
"#;

/// What a child runs first: it tells the keeper its own process id on the pipe that it gets as standard input, then
/// becomes the program. So there is no moment at which a child runs and the keeper doesn't know, not even if the test
/// process is killed in between.
const ANNOUNCE: &str = r#"echo "started $$" >&0; exec "$@" </dev/null"#;

/// The handle of one keeper process.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: u32,
    /// `None` once closed.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    pipe: PipeWriter,
    keeper: Child,
}

impl Keeper {
    /// Starts a keeper that removes `directory` at the end (unless `LESSOR_CLUSTER_KEEP` is set and not empty).
    pub(crate) fn start(directory: &Path) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        let keeper = Command::new("sh")
            .args(["-c", SCRIPT, "lessor-cluster-keeper"])
            .arg(directory)
            .current_dir("/")
            .stdin(reader)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C goes to the foreground process group: the keeper must not be in it.
            .process_group(0)
            .spawn()?;
        Ok(Self { pid: keeper.id(), open: Mutex::new(Some(Open { pipe, keeper })) })
    }

    /// The process id of the keeper itself.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Starts `command` in a process group of its own, which the keeper kills at the latest when this process ends.
    ///
    /// Program, arguments, environment and directory are taken from `command`; standard input is empty.
    pub(crate) fn spawn(&self, command: &Command, stdout: Stdio, stderr: Stdio) -> io::Result<Child> {
        let open = self.open.lock();
        let Some(open) = open.as_ref() else {
            return Err(io::Error::other("the cluster has been stopped"));
        };
        let mut wrapped = Command::new("sh");
        wrapped.args(["-c", ANNOUNCE, "sh"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            wrapped.current_dir(directory);
        }
        wrapped.stdin(open.pipe.try_clone()?).stdout(stdout).stderr(stderr).process_group(0).spawn()
    }

    /// Says that the child `pid` has ended, before its number can be given to another process.
    pub(crate) fn ended(&self, pid: u32) {
        self.tell(&format!("ended {pid}\n"));
    }

    /// Tells the keeper to leave everything running when this process ends, until the keeper gets SIGTERM. Returns when it
    /// listens to that: one that came earlier would be lost, and everything would run for ever.
    pub(crate) fn stay(&self) {
        self.tell("stay\n");
        let answers = self.open.lock().as_mut().and_then(|open| open.keeper.stdout.take());
        if let Some(answers) = answers {
            // Nothing comes if the keeper was killed; no process is left to be asked then.
            let _ = BufReader::new(answers).read_line(&mut String::new());
        }
    }

    fn tell(&self, line: &str) {
        if let Some(open) = self.open.lock().as_mut() {
            // A write fails only if the keeper was killed; there is no reader left then.
            let _ = open.pipe.write_all(line.as_bytes());
        }
    }

    /// Lets the keeper kill everything and remove the directory, and waits until it has.
    pub(crate) fn close(&self) {
        let open = self.open.lock().take();
        if let Some(Open { pipe, mut keeper }) = open {
            drop(pipe);
            let _ = keeper.wait();
        }
    }

    /// Closes the pipe without waiting; used with [`Keeper::stay`].
    pub(crate) fn abandon(&self) {
        drop(self.open.lock().take());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.close();
    }
}
