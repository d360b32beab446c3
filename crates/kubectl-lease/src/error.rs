//! Why a command failed, what to do about it, and the exit code that says so to scripts.

use std::{fmt, io, process::ExitCode};

use lessor_client::{Error, Lost};

/// The exit codes, as `--help` explains them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed for another reason than those below
  2    the command line is wrong
  3    there is no such lease, or no such object
  4    the lease is over: it has ended, or was lost
  5    the API server refuses: a right is missing, or it doesn't know you
  6    the API server can't be reached, or can't do its work
  7    `status` sees something that needs attention
`run` exits like its command (128 + N if signal N ended it), or with
  124  the lease was lost, and the command was stopped
  125  the lease couldn't be granted
  126  the command can't be run
  127  there is no such command";

pub(crate) const OTHER: u8 = 1;
pub(crate) const NOT_FOUND: u8 = 3;
pub(crate) const OVER: u8 = 4;
pub(crate) const REFUSED: u8 = 5;
pub(crate) const UNREACHABLE: u8 = 6;
pub(crate) const ATTENTION: u8 = 7;
pub(crate) const RUN_LOST: u8 = 124;
pub(crate) const RUN_NOT_GRANTED: u8 = 125;
pub(crate) const RUN_NOT_RUNNABLE: u8 = 126;
pub(crate) const RUN_NO_COMMAND: u8 = 127;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// What happened; empty, if everything has been said.
    message: String,
    hint: Option<String>,
}

/// How a command ends.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Something else than what errors of the client say.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// Everything has been said.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    /// The same, with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// Says what it's about.
    pub(crate) fn about(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Tells people.
    pub(crate) fn report(&self) {
        if !self.message.is_empty() {
            note(format!("error: {}", self.message));
        }
        if let Some(hint) = &self.hint {
            note(format!("hint: {hint}"));
        }
    }

    /// Tells whoever waits for the process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// Tells people something beside the result.
pub(crate) fn note(text: impl fmt::Display) {
    use io::Write as _;
    // Nobody is left to be told that telling failed.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::NotFound(_) | Error::NotInstalled => NOT_FOUND,
            Error::Ended | Error::Replaced => OVER,
            Error::Forbidden(_) | Error::Unauthorized(_) => REFUSED,
            Error::NoAnswer(_) | Error::Failing(_) | Error::Throttled(_) => UNREACHABLE,
            _ => OTHER,
        };
        Self { code, message: error.to_string(), hint: error.hint() }
    }
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Self {
        Self::new(OVER, lost.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // `kubectl lease list | head` has seen enough.
            io::ErrorKind::BrokenPipe => Self::silent(0),
            _ => Self::new(OTHER, error.to_string()),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::new(OTHER, error.to_string()),
        }
    }
}
