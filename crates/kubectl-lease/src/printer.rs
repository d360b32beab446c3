//! Standard output, and the formats of `-o`.

use std::io::{self, StdoutLock, Write};

use anstream::AutoStream;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::{error::CliResult, table::Table};

/// `-o`.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// A table or plain text
    Table,
    /// Like table, with more columns
    Wide,
    /// The objects as JSON
    Json,
    /// The objects as YAML
    Yaml,
    /// The names of the objects
    Name,
}

impl OutputFormat {
    /// Whether the output is for people.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Standard output. Drops styles unless it is a terminal that supports them (see <https://no-color.org>).
pub(crate) struct Printer {
    out: AutoStream<StdoutLock<'static>>,
}

impl Printer {
    pub(crate) fn new() -> Self {
        Self { out: AutoStream::auto(io::stdout().lock()) }
    }

    /// Prints a line, and flushes it, so that the reader of a pipe receives each line at once.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> io::Result<()> {
        writeln!(self.out, "{}", line.as_ref())?;
        self.out.flush()
    }

    /// Prints a text without a newline at its end.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        write!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Prints a value as YAML, or else as JSON.
    pub(crate) fn value(&mut self, value: &Value, format: OutputFormat) -> CliResult {
        if format == OutputFormat::Yaml {
            let yaml = serde_saphyr::to_string(value).map_err(|error| io::Error::other(error.to_string()))?;
            return Ok(self.text(&yaml)?);
        }
        serde_json::to_writer_pretty(&mut self.out, value)?;
        Ok(self.line("")?)
    }

    /// Prints a table.
    pub(crate) fn table(&mut self, table: &Table) -> io::Result<()> {
        table.lines().try_for_each(|line| self.line(line))
    }
}

/// A List object, as kubectl prints several objects.
pub(crate) fn list_of(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
}
