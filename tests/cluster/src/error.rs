//! What can go wrong, and what to do about it.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

/// Why a cluster couldn't be built, started or used. Each message says what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A binary has to be built, and there is no Go.
    #[error(
        "can't build {tool}: no `go` in PATH ({source}); install Go 1.26 or newer, or set {variable} to a \
         {tool} binary, or KUBEBUILDER_ASSETS to a directory that has one"
    )]
    MissingGo {
        /// The binary that was to be built.
        tool: &'static str,
        /// The environment variable that names one.
        variable: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// `go build` failed.
    #[error(
        "building {tool} failed ({status}); it needs Go 1.26, 4 GB of disk in Go's caches, and the Go modules in \
         go.sum; or set {variable} to a {tool} binary\n{log}"
    )]
    Build {
        /// The binary that was to be built.
        tool: &'static str,
        /// The environment variable that names one.
        variable: &'static str,
        /// How `go build` ended.
        status: ExitStatus,
        /// What it said last.
        log: LogTail,
    },
    /// An environment variable names a binary that isn't there.
    #[error("{variable} names {}, which is no file; correct or unset it", path.display())]
    MissingAsset {
        /// The environment variable.
        variable: &'static str,
        /// What it says.
        path: PathBuf,
    },
    /// There is no home directory for the cache.
    #[error("nowhere to keep the cluster's binaries: set HOME, XDG_CACHE_HOME or LESSOR_CLUSTER_CACHE")]
    NoCache,
    /// A port is taken by another program.
    #[error(
        "port {port} on 127.0.0.1 is taken, so {server} can't use it; stop whatever listens there\n{log}"
    )]
    PortTaken {
        /// The server that wanted it.
        server: String,
        /// The port.
        port: u16,
        /// What the server said last.
        log: LogTail,
    },
    /// A server ended right after its start.
    #[error("{server} ended ({status}) before it was ready; its log says why\n{log}")]
    Exited {
        /// Which one.
        server: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said last.
        log: LogTail,
    },
    /// A server runs and doesn't become ready.
    #[error(
        "{server} isn't ready after {} s ({reason}); on a busy machine run fewer clusters at once\n{log}",
        waited.as_secs()
    )]
    NotReady {
        /// Which one.
        server: String,
        /// How long it was given.
        waited: Duration,
        /// What the last question to it got for an answer.
        reason: String,
        /// What it said last.
        log: LogTail,
    },
    /// A process that was asked to end goes on.
    #[error("{name} still runs {} s after SIGTERM; `kill` it\n{log}", waited.as_secs())]
    StillRunning {
        /// Which one.
        name: String,
        /// How long it was given.
        waited: Duration,
        /// What it said last.
        log: LogTail,
    },
    /// What was asked needs a cluster that this crate started.
    #[error(
        "can't {0} of an existing cluster; unset USE_EXISTING_CLUSTER so that one is started for the tests"
    )]
    NotOurs(&'static str),
    /// The cluster was started without it.
    #[error("this cluster runs without {0}; ask for it with `Cluster::builder()`")]
    NotStarted(&'static str),
    /// The API server refused or couldn't be reached.
    #[error("{doing}: {source}")]
    Kube {
        /// What was being done.
        doing: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// A kubeconfig can't be used.
    #[error("reading the kubeconfig: {0}; check KUBECONFIG")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A certificate couldn't be made.
    #[error("making a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The operating system said no.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Like its display: this is what a test prints that returns the error, and a person shall read it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn io(doing: String, source: io::Error) -> Self {
        Self::Io { doing, source }
    }
}

/// Adds to an error what was being done.
pub(crate) trait Doing<T> {
    /// `doing` begins with a verb in -ing.
    fn doing<S: Into<String>>(self, doing: impl FnOnce() -> S) -> Result<T, Error>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing<S: Into<String>>(self, doing: impl FnOnce() -> S) -> Result<T, Error> {
        self.map_err(|source| Error::io(doing().into(), source))
    }
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing<S: Into<String>>(self, doing: impl FnOnce() -> S) -> Result<T, Error> {
        self.map_err(|source| Error::Kube { doing: doing().into(), source: Box::new(source) })
    }
}

/// The last lines of a log file, taken when an error was made (the file itself goes with the cluster).
#[derive(Debug, Clone)]
pub struct LogTail {
    path: PathBuf,
    lines: Vec<String>,
}

impl LogTail {
    const LINES: usize = 20;

    pub(crate) fn of(path: &Path) -> Self {
        let log = fs::read(path).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let mut lines: Vec<_> = log.lines().rev().take(Self::LINES).map(str::to_owned).collect();
        lines.reverse();
        Self { path: path.to_owned(), lines }
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.contains(text))
    }
}

impl fmt::Display for LogTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return write!(f, "{} is empty", self.path.display());
        }
        write!(f, "last lines of {}:", self.path.display())?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
