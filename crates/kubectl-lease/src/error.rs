//! Errors of commands, with hints and exit codes.

use std::{fmt, io, process::ExitCode};

use lessor_client::{Error, LossReason};

/// The exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    any other error
  2    invalid command line
  3    the lease or object doesn't exist
  4    the lease has ended or was lost
  5    unauthorized or forbidden
  6    the API server is unreachable or failing
  7    `status` found a problem

`run` exits with the code of its command (128 + N after signal N), or with:
  124  the lease was lost and the command was stopped
  125  the lease couldn't be granted
  126  the command can't be executed
  127  the command doesn't exist";

pub(crate) const OTHER: u8 = 1;
pub(crate) const NOT_FOUND: u8 = 3;
pub(crate) const ENDED: u8 = 4;
pub(crate) const REFUSED: u8 = 5;
pub(crate) const UNREACHABLE: u8 = 6;
pub(crate) const PROBLEM: u8 = 7;
pub(crate) const RUN_LOST: u8 = 124;
pub(crate) const RUN_NOT_GRANTED: u8 = 125;
pub(crate) const RUN_NOT_EXECUTABLE: u8 = 126;
pub(crate) const RUN_NO_COMMAND: u8 = 127;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct CliError {
    code: u8,
    /// Empty if the output already explains the failure.
    message: String,
    hint: Option<String>,
}

/// The result of a command.
pub(crate) type CliResult<T = ()> = Result<T, CliError>;

impl CliError {
    /// An error with a message of its own.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// An error that the output already explains.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    /// Changes the exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// Prefixes the message with its subject.
    pub(crate) fn about(self, subject: impl fmt::Display) -> Self {
        Self { message: format!("{subject}: {}", self.message), ..self }
    }

    /// Prints the error to standard error.
    pub(crate) fn report(&self) {
        if !self.message.is_empty() {
            note(format!("error: {}", self.message));
        }
        if let Some(hint) = &self.hint {
            note(format!("hint: {hint}"));
        }
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// Prints a line to standard error.
pub(crate) fn note(text: impl fmt::Display) {
    use io::Write as _;
    // If standard error is closed, there is no other place to report that.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::NotFound(_) | Error::NotInstalled => NOT_FOUND,
            Error::Ended | Error::Replaced => ENDED,
            Error::Forbidden(_) | Error::Unauthorized(_) => REFUSED,
            Error::NoResponse(_) | Error::ServerError(_) | Error::Throttled(_) => UNREACHABLE,
            _ => OTHER,
        };
        Self { code, message: error.to_string(), hint: error.hint() }
    }
}

impl From<LossReason> for CliError {
    fn from(reason: LossReason) -> Self {
        Self::new(ENDED, reason.to_string())
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // In `kubectl lease list | head`, head closes the pipe.
            io::ErrorKind::BrokenPipe => Self::silent(0),
            _ => Self::new(OTHER, error.to_string()),
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::new(OTHER, error.to_string()),
        }
    }
}
